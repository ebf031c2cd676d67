"""Models by the name that a model hub gives them: OWNER/REPO[@REVISION][:SUBFOLDER or FILE].

`names` reads a name, `contents` chooses from what a repository holds, `fits` says whether this
machine has room for it and how fast it can be, `fetch` downloads it, `folder` lays it out as a
model folder with nothing in it that would be executed. `models` has what commands call.
"""
