"""Text of a scalar value -> the value."""

from __future__ import annotations

import re

from amct_onnx.prototext.schema import FieldSpec, Kind

# No whole number of 64 bits has more digits.
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")
_OCTAL = re.compile(r"-?0[0-7]{1,22}")
_HEX = re.compile(r"-?0[xX][0-9a-fA-F]{1,16}")
# No needless leading zero: 0948 is a lost point (0.948) as likely as anything, and protobuf refuses it.
_FLOAT = re.compile(r"(-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fF]?")
_NOT_FINITE = re.compile(r"(-?(?:inf(?:inity)?|nan))f?", re.IGNORECASE)
_BOOLS = {"true": True, "True": True, "t": True, "1": True, "false": False, "False": False, "f": False, "0": False}

_ESCAPE = re.compile(
    rb"""\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([abfnrtv?'"\\])|)""", re.DOTALL
)
_SIMPLE_ESCAPES = dict(zip(b"abfnrtv?'\"\\", b"\a\b\f\n\r\t\v?'\"\\", strict=True))
_MOST_SHOWN = 40
_BREAK = re.compile(r"[ \t]*\r?\n[ \t\r\n]*")


def scalar(spec: FieldSpec, token: str) -> float | int | bool | str:
    """Return the value that a number or a bare word has for a field.

    Raises ``ValueError``, its message saying what was expected, if it has none.
    """
    value: float | int | bool | str | None = None
    if spec.kind is Kind.FLOAT:
        found = _FLOAT.fullmatch(token) or _NOT_FINITE.fullmatch(token)
        value = float(found[1]) if found else None
    elif spec.kind is Kind.INT:
        value = _whole(token)
        if value is not None and not spec.bounds[0] <= value <= spec.bounds[1]:
            raise ValueError(f"{token} does not fit {spec.name}, which holds {spec.bounds[0]} to {spec.bounds[1]}")
    elif spec.kind is Kind.BOOL:
        value = _BOOLS.get(token)
    elif spec.kind is Kind.ENUM:
        return _enum(spec, token)
    if value is None:
        raise ValueError(f"{spec.name} takes {spec.kind.value}, not {_shown(token)}")
    return value


def _whole(token: str) -> int | None:
    if _DECIMAL.fullmatch(token):
        return int(token)
    if _OCTAL.fullmatch(token):
        return int(token, 8)
    return int(token, 16) if _HEX.fullmatch(token) else None


def _enum(spec: FieldSpec, token: str) -> str:
    if token in spec.names.values():
        return token
    name = spec.names.get(int(token)) if _DECIMAL.fullmatch(token) else None
    if name is None:
        raise ValueError(f"{spec.name} takes one of {', '.join(spec.names.values())}, not {_shown(token)}")
    return name


def _shown(token: str) -> str:
    return token if len(token) <= _MOST_SHOWN else token[:_MOST_SHOWN] + "..."


def join_broken(body: str) -> str:
    """Join a literal that is broken over lines: each break goes, with the white space around it."""
    return _BREAK.sub("", body)


def unquote(spec: FieldSpec, body: str) -> str | bytes:
    """Return the value of a string literal given without its quotes.

    Raises ``ValueError`` for an unknown escape, or for bytes that are not UTF-8 in a field of text.
    """
    if "\\" not in body:
        return body.encode() if spec.kind is Kind.BYTES else body
    data = _ESCAPE.sub(_unescape, body.encode())
    if spec.kind is Kind.BYTES:
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f'the escapes in {spec.name} "{body}" do not spell UTF-8') from None


def _unescape(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, short, long, simple = match.groups()
    if octal:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal:
        return bytes([int(hexadecimal, 16)])
    if short or long:
        try:
            return chr(int(short or long, 16)).encode()
        except (ValueError, OverflowError):
            raise ValueError(f"{match[0].decode()} names no character") from None
    if simple:
        return bytes([_SIMPLE_ESCAPES[simple[0]]])
    raise ValueError("a backslash begins an unknown escape; write it twice if the name holds one")
