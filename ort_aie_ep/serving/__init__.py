"""`ort-aie serve`: a model behind the HTTP interface of OpenAI's clients.

`app` has the routes, `requests` what they take, `engine` the process that runs the model. Turns are
those of `running.turns`.
"""
