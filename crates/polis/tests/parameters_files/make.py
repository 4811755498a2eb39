"""Makes a parameters file with Python's protobuf, from a table of the fields alone: no code that was generated from a schema.

Usage: make.py OWNER_PUBLIC_KEY_IN_HEX >FILE
"""

import sys

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# The part of the wire contract that is needed here: the field table of NodeParameters and of what it is made of. A message or an
# enum in each line that begins at the margin, its fields in the lines below it.
TABLE = """
metropolis.proto.common.NodeLabels
  1 pairs: repeated metropolis.proto.common.NodeLabels.Pair
metropolis.proto.common.NodeLabels.Pair
  1 key: string
  2 value: string
metropolis.proto.common.ClusterConfiguration
  4 cluster_domain: string
  1 tpm_mode: enum metropolis.proto.common.ClusterConfiguration.TPMMode
  2 storage_security_policy: enum metropolis.proto.common.ClusterConfiguration.StorageSecurityPolicy
enum metropolis.proto.common.ClusterConfiguration.TPMMode
  0 TPM_MODE_INVALID
  1 TPM_MODE_REQUIRED
  2 TPM_MODE_BEST_EFFORT
  3 TPM_MODE_DISABLED
enum metropolis.proto.common.ClusterConfiguration.StorageSecurityPolicy
  0 STORAGE_SECURITY_POLICY_INVALID
  1 STORAGE_SECURITY_POLICY_PERMISSIVE
  2 STORAGE_SECURITY_POLICY_NEEDS_ENCRYPTION
  3 STORAGE_SECURITY_POLICY_NEEDS_ENCRYPTION_AND_AUTHENTICATION
  4 STORAGE_SECURITY_POLICY_NEEDS_INSECURE
metropolis.proto.api.NodeParameters
  1 cluster_bootstrap: metropolis.proto.api.NodeParameters.ClusterBootstrap
metropolis.proto.api.NodeParameters.ClusterBootstrap
  1 owner_public_key: bytes
  3 initial_cluster_configuration: metropolis.proto.common.ClusterConfiguration
  4 labels: metropolis.proto.common.NodeLabels
"""

PACKAGES = ["metropolis.proto.common", "metropolis.proto.api"]

Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {"string": Field.TYPE_STRING, "bytes": Field.TYPE_BYTES}


def tables():
    """Yields the name, whether it is an enum, and the field lines of each entry of the table."""
    entry = None
    for line in TABLE.strip().splitlines():
        if line.startswith(" "):
            entry[2].append(line.strip())
            continue
        if entry:
            yield entry
        is_enum = line.startswith("enum ")
        entry = (line.removeprefix("enum "), is_enum, [])
    yield entry


def add_field(message, line):
    number, rest = line.split(" ", 1)
    name, kind = rest.split(": ")
    field = message.field.add(name=name, number=int(number), label=Field.LABEL_OPTIONAL)
    if kind.startswith("repeated "):
        field.label = Field.LABEL_REPEATED
        kind = kind.removeprefix("repeated ")
    if kind in SCALARS:
        field.type = SCALARS[kind]
    elif kind.startswith("enum "):
        field.type, field.type_name = Field.TYPE_ENUM, "." + kind.removeprefix("enum ")
    else:
        field.type, field.type_name = Field.TYPE_MESSAGE, "." + kind


def build_pool():
    pool = descriptor_pool.DescriptorPool()
    for package in PACKAGES:
        file = descriptor_pb2.FileDescriptorProto(name=package + ".proto", package=package, syntax="proto3")
        file.dependency.extend(other + ".proto" for other in PACKAGES[: PACKAGES.index(package)])
        # An entry stands behind the one that it is nested in.
        messages = {}
        for full_name, is_enum, lines in tables():
            if not full_name.startswith(package + "."):
                if full_name.rsplit(".", 1)[0] == package:
                    raise SystemExit(f"{full_name} has no place")
                continue
            parent, name = full_name.rsplit(".", 1)
            owner = file if parent == package else messages[parent]
            if is_enum:
                enum = owner.enum_type.add(name=name)
                for line in lines:
                    number, value = line.split(" ")
                    enum.value.add(name=value, number=int(number))
                continue
            message = owner.message_type.add(name=name) if owner is file else owner.nested_type.add(name=name)
            messages[full_name] = message
            for line in lines:
                add_field(message, line)
        pool.Add(file)
    return pool


def message_class(pool, name):
    descriptor = pool.FindMessageTypeByName(name)
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    # Before version 4.22.
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)


def main():
    pool = build_pool()
    parameters = message_class(pool, "metropolis.proto.api.NodeParameters")()
    bootstrap = parameters.cluster_bootstrap
    bootstrap.owner_public_key = bytes.fromhex(sys.argv[1])
    configuration = bootstrap.initial_cluster_configuration
    configuration.cluster_domain = "snakes.example.internal"
    value = pool.FindEnumTypeByName("metropolis.proto.common.ClusterConfiguration.TPMMode").values_by_name
    configuration.tpm_mode = value["TPM_MODE_DISABLED"].number
    value = pool.FindEnumTypeByName("metropolis.proto.common.ClusterConfiguration.StorageSecurityPolicy").values_by_name
    configuration.storage_security_policy = value["STORAGE_SECURITY_POLICY_NEEDS_INSECURE"].number
    for key, text in [("made-by", "python"), ("example.com/rack", "r07"), ("empty", "")]:
        bootstrap.labels.pairs.add(key=key, value=text)
    sys.stdout.buffer.write(parameters.SerializeToString())


main()
