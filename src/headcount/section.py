"""What every part of the typed configuration is made of. No torch here."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

TRUTH_VALUE = "truth_value"
"""The error of a truth value that stands where a number or a name should."""


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, and truth values outside switches."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, data: Any) -> Any:
        """Of `model.n_heads=true` Python would make one head."""
        for key, value in data.items() if isinstance(data, dict) else ():
            field = cls.model_fields.get(key)
            values = value if isinstance(value, list) else [value]
            if (
                field
                and field.annotation is not bool
                and any(v is True or v is False for v in values)
            ):
                about = {"key": key, "value": str(value).lower()}
                raise PydanticCustomError(TRUTH_VALUE, "should be a number or a name", about)
        return data


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
PositiveInt = Annotated[int, Field(ge=1)]
