"""`python -m ort_aie_ep`: the command line where `ort-aie` is not on the path."""

from ort_aie_ep.cli import main

main()
