"""`ort-aie explain --html`: a model's graph as one page that needs nothing else.

`graph.py` reads who reads whom, `groups.py` divides that into pieces of a screen, `layout.py`
places each piece, and `page.py` puts all of it into the template `page.html`.
"""
