"""`ort-aie serve`: a model behind the HTTP interfaces of OpenAI's and Anthropic's clients.

`app` has the routes, and `engine` the process that runs the model. Between them, each interface
makes a turn (`running.turns`) of a request, and an answer of what comes of it: `requests` and
`answers` for Chat Completions, with what all share, `responses`, and `messages`.
"""
