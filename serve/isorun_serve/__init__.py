"""Models over HTTP: the protocols of OpenAI, text-embeddings-inference, Cohere and Jina, and Open Inference Protocol.

:func:`isorun_serve.app.create_app` makes the application, ``isorun serve`` runs it.
"""
