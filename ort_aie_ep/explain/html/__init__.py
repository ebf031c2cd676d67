"""`ort-aie explain --html`: a model's graph as one self-contained page.

`graph.py` reads the nodes and edges, `groups.py` divides them into groups about as large as a
screen, `layout.py` places the nodes of each group, and `page.py` fills the template `page.html`.
"""
