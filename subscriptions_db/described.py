"""Define the base class of the types of the API and of the manifest. Runs in the API and in `fanout` commands. Pure."""

from __future__ import annotations

import pydantic


class DescribedModel(pydantic.BaseModel):
    """A type whose fields have the docstrings below them as descriptions in the OpenAPI document."""

    model_config = pydantic.ConfigDict(use_attribute_docstrings=True)
