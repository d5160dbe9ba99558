"""What every part of the typed configuration is made of. No torch here."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, and so is a value of another type, as
    `true` would make one head."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
PositiveInt = Annotated[int, Field(ge=1)]
