"""A certificate of a mesh: a key pair on the curve P-256 and a certificate that it signs itself (RFC 5280, FIPS 186-5).

TLS in Python's standard library takes certificates and cannot make them. Python 3.13 would do without (TLS with a
shared key); this is for 3.11 and 3.12. One pair is made for each mesh, by the controller, in some 20 ms. The only other
use of the private key is inside OpenSSL.

The dates are wide, as the clocks of hosts differ: a mesh's certificate ends with its processes.
"""

import base64
import hashlib
import secrets

_FIELD = 2**256 - 2**224 + 2**192 + 2**96 - 1
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BASE = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_Point = tuple[int, int] | None

_CURVE_ID = bytes.fromhex("06082a8648ce3d030107")  # prime256v1
_KEY_ID = bytes.fromhex("06072a8648ce3d0201")  # ecPublicKey
_SIGNATURE_ID = bytes.fromhex("06082a8648ce3d040302")  # ecdsa-with-SHA256
_COMMON_NAME_ID = bytes.fromhex("0603550403")
_CONSTRAINTS_ID = bytes.fromhex("0603551d13")
_SEQUENCE, _SET, _INTEGER, _BITS, _OCTETS, _TEXT, _TIME = 0x30, 0x31, 0x02, 0x03, 0x04, 0x0C, 0x18


def make_certificate() -> tuple[str, str]:
    """Makes a certificate and its private key, both as PEM."""
    private = 1 + secrets.randbelow(_ORDER - 1)
    public = _encode_point(_multiply(private, _BASE))
    body = _certificate_body(public)
    algorithm = _der(_SEQUENCE, _SIGNATURE_ID)
    certificate = _der(_SEQUENCE, body, algorithm, _der(_BITS, b"\0", _sign(body, private)))
    key = _der(
        _SEQUENCE,
        _integer(1),
        _der(_OCTETS, private.to_bytes(32, "big")),
        _der(0xA0, _CURVE_ID),
        _der(0xA1, _der(_BITS, b"\0", public)),
    )
    return _pem("CERTIFICATE", certificate), _pem("EC PRIVATE KEY", key)


def _certificate_body(public: bytes) -> bytes:
    name = _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, _COMMON_NAME_ID, _der(_TEXT, b"jaxquard mesh"))))
    constraints = _der(_SEQUENCE, _CONSTRAINTS_ID, b"\x01\x01\xff", _der(_OCTETS, _der(_SEQUENCE, b"\x01\x01\xff")))
    return _der(
        _SEQUENCE,
        _der(0xA0, _integer(2)),  # version 3
        _integer(secrets.randbits(64)),
        _der(_SEQUENCE, _SIGNATURE_ID),
        name,
        _der(_SEQUENCE, _der(_TIME, b"20000101000000Z"), _der(_TIME, b"99991231235959Z")),
        name,
        _der(_SEQUENCE, _der(_SEQUENCE, _KEY_ID, _CURVE_ID), _der(_BITS, b"\0", public)),
        _der(0xA3, _der(_SEQUENCE, constraints)),
    )


def _sign(message: bytes, private: int) -> bytes:
    """Signs with ECDSA over SHA-256."""
    digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
    while True:
        nonce = 1 + secrets.randbelow(_ORDER - 1)
        point = _multiply(nonce, _BASE)
        assert point is not None
        first = point[0] % _ORDER
        second = pow(nonce, -1, _ORDER) * (digest + first * private) % _ORDER
        if first and second:
            return _der(_SEQUENCE, _integer(first), _integer(second))


def _multiply(factor: int, point: _Point) -> _Point:
    result: _Point = None
    while factor:
        if factor & 1:
            result = _add(result, point)
        point = _add(point, point)
        factor >>= 1
    return result


def _add(first: _Point, second: _Point) -> _Point:
    """Adds two points of the curve; None is the point at infinity."""
    if first is None or second is None:
        return first or second
    (x1, y1), (x2, y2) = first, second
    if x1 == x2 and (y1 + y2) % _FIELD == 0:
        return None
    rise, run = (3 * x1 * x1 - 3, 2 * y1) if first == second else (y2 - y1, x2 - x1)
    slope = rise * pow(run, -1, _FIELD)
    x3 = (slope * slope - x1 - x2) % _FIELD
    return x3, (slope * (x1 - x3) - y1) % _FIELD


def _encode_point(point: _Point) -> bytes:
    assert point is not None
    return b"\x04" + b"".join(coordinate.to_bytes(32, "big") for coordinate in point)


def _integer(value: int) -> bytes:
    return _der(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _pem(label: str, data: bytes) -> str:
    text = base64.b64encode(data).decode()
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])
