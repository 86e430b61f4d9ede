"""Make the documents of the HTTP API: the OpenAPI document, and a page for each type of problem.

In: the routes, their types and their examples. Out: JSON, HTML and Markdown. Runs in the API, which serves the documents.
openapi.py also runs in `fanout openapi`, and problem_pages.py in `make docs`.
"""
