"""What protoc makes of the text of a Protobuf schema."""

from __future__ import annotations

import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.type import date_pb2
from grpc_tools import protoc

from tests.records.naive_protobuf import FOREIGN, add_with_imports


def compiled(text: str) -> Any:
    """Return the descriptor that protoc makes of a text."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "table.proto"), Path(folder, "made.bin")
        source.write_text(text)
        shipped = str(files("grpc_tools").joinpath("_proto"))
        types = Path(date_pb2.__file__).parents[2]
        decimal = Path(folder, "confluent/type/decimal.proto")
        decimal.parent.mkdir(parents=True)
        decimal.write_text(DECIMAL)
        paths = [f"-I{path}" for path in (folder, shipped, types)]
        status = protoc.main(["protoc", *paths, f"--descriptor_set_out={made}", "table.proto"])
        assert status == 0, text
        found = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes())
    return found.file[0]


DECIMAL = """syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
"""


def compiled_class(text: str, name: str) -> Any:
    """Return the official library's class for a message of a text, by its name in the package."""
    pool, names = descriptor_pool.DescriptorPool(), set[str]()
    for module in FOREIGN:
        add_with_imports(pool, module.DESCRIPTOR, names)
    file = compiled(text)
    pool.Add(file)
    found = pool.FindMessageTypeByName(f"{file.package}.{name}")
    return message_factory.GetMessageClass(found)
