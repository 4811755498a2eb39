"""A client of a cluster that shares nothing with Polis: messages made from the table in contract.txt, Python's protobuf,
grpclib, OpenSSL's TLS. It does what Metropolis' metroctl does, in its order of calls.

    client.py DIRECTORY takeownership ADDRESS      DIRECTORY holds owner-key.pem; gets ca.pem and owner.pem
    client.py DIRECTORY ADDRESS ticket | info | parameters FILE | list FILTER | approve PUBKEY | roles ID ROLE=BOOL...
                                | labels ID K=V... K-... | delete ID BYPASS... | logs DN COUNT

Prints one JSON value. A refusal is {"code": NAME, "message": TEXT}, with exit code 1.
"""

import asyncio
import base64
import json
import pathlib
import re
import ssl
import subprocess
import sys

from google.protobuf import (descriptor_pb2, descriptor_pool, duration_pb2, field_mask_pb2, json_format, message_factory,
                             timestamp_pb2)
from grpclib.client import Channel, StreamStreamMethod, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.exceptions import GRPCError

HERE = pathlib.Path(__file__).parent
CURATOR_PORT, NODE_MANAGEMENT_PORT = 7835, 7839
DEADLINE = 30
FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = {name: getattr(FIELD, "TYPE_" + name.upper()) for name in ("string", "bytes", "bool", "int32", "int64", "uint64")}
WELL_KNOWN = {
    "google.protobuf.Timestamp": timestamp_pb2,
    "google.protobuf.Duration": duration_pb2,
    "google.protobuf.FieldMask": field_mask_pb2,
}


def short_type(name):
    """The table names well-known types by their last part or in full."""
    return name if "." in name else {"Timestamp": "google.protobuf.Timestamp"}.get(name, name)


class Contract:
    """The messages and calls of the table."""

    def __init__(self, text):
        self.pool = descriptor_pool.DescriptorPool()
        for module in WELL_KNOWN.values():
            self.pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        self.factory = message_factory.MessageFactory(self.pool)
        self.calls = {}
        sections = re.split(r"^## ", text, flags=re.M)[1:]
        known = {}
        for section in sections:
            path, package = re.match(r"(\S+) \(package ([\w.]+)\)", section).groups()
            for kind, name in re.findall(r"^(message|enum) ([\w.]+)", section, re.M):
                known[f"{package}.{name}"] = kind
        earlier = [module.DESCRIPTOR.name for module in WELL_KNOWN.values()]
        for section in sections:
            path, package = re.match(r"(\S+) \(package ([\w.]+)\)", section).groups()
            file = descriptor_pb2.FileDescriptorProto(name=path, package=package, syntax="proto3", dependency=earlier)
            self.read(file, package, section, known)
            self.pool.Add(file)
            earlier = earlier + [path]

    def read(self, file, package, section, known):
        messages, current, service = {}, None, None
        for line in section.splitlines()[1:]:
            if match := re.match(r"message ([\w.]+)$", line):
                name = match.group(1)
                outer, _, last = name.rpartition(".")
                current = (messages[outer].nested_type if outer else file.message_type).add(name=last)
                messages[name] = current
            elif match := re.match(r"enum ([\w.]+): (.*)$", line):
                outer, _, last = match.group(1).rpartition(".")
                enum = (messages[outer].enum_type if outer else file.enum_type).add(name=last)
                for value in match.group(2).split(", "):
                    number, _, label = value.partition("=")
                    enum.value.add(name=label, number=int(number))
            elif match := re.match(r"service (\w+)$", line):
                service = match.group(1)
            elif match := re.match(r"  (\d+) (\w+): (repeated |optional )?([\w.]+)(?: \(oneof (\w+)\))?$", line):
                self.field(current, known, *match.groups())
            elif match := re.match(r"  (\w+): (stream )?([\w.]+) -> (stream )?([\w.]+)$", line):
                name, client_streams, request, server_streams, answer = match.groups()
                self.calls[f"{package}.{service}/{name}"] = (bool(client_streams), request, bool(server_streams), answer)
            elif line.strip():
                raise ValueError(f"the table has a line that is not understood: {line!r}")

    def field(self, message, known, number, name, label, kind, oneof):
        field = message.field.add(name=name, number=int(number), label=FIELD.LABEL_OPTIONAL)
        if label == "repeated ":
            field.label = FIELD.LABEL_REPEATED
        kind = short_type(kind)
        if kind in SCALARS:
            field.type = SCALARS[kind]
        else:
            field.type = FIELD.TYPE_ENUM if known.get(kind) == "enum" else FIELD.TYPE_MESSAGE
            field.type_name = "." + kind
        if oneof:
            names = [declared.name for declared in message.oneof_decl]
            if oneof not in names:
                message.oneof_decl.add(name=oneof)
                names.append(oneof)
            field.oneof_index = names.index(oneof)
        if label == "optional ":
            # proto3's optional is a oneof of its own; those stand after all others, which the table's messages keep.
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name="_" + name)

    def message(self, name):
        descriptor = self.pool.FindMessageTypeByName(name)
        # protobuf 4 renamed it.
        if hasattr(message_factory, "GetMessageClass"):
            return message_factory.GetMessageClass(descriptor)
        return self.factory.GetPrototype(descriptor)


CONTRACT = Contract("\n".join(line for line in (HERE / "contract.txt").read_text().splitlines() if not line.startswith("# ")))


def api(name):
    return CONTRACT.message("metropolis.proto.api." + name)


class Connection:
    """A TLS connection to one address, with a client certificate or none."""

    def __init__(self, address, port, authority=None, identity=None):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # A node is known by the cluster's CA and its id, not by a name in DNS.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED if authority else ssl.CERT_NONE
        if authority:
            context.load_verify_locations(authority)
        if identity:
            context.load_cert_chain(*identity)
        context.set_alpn_protocols(["h2"])
        self.channel = Channel(address, port, ssl=context)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.channel.close()

    def method(self, path):
        client_streams, request, server_streams, answer = CONTRACT.calls[path]
        kind = {(False, False): UnaryUnaryMethod, (False, True): UnaryStreamMethod, (True, True): StreamStreamMethod}
        types = CONTRACT.message(request), CONTRACT.message(answer)
        return kind[client_streams, server_streams](self.channel, "/" + path, *types)

    async def call(self, path, request):
        return await self.method(path)(request, timeout=DEADLINE)


def owner_key(directory):
    """metroctl's file: 64 raw bytes, of which the first 32 are the secret. Written again as PKCS#8, which OpenSSL reads."""
    body = re.search(r"-----BEGIN METROPOLIS INITIAL OWNER PRIVATE KEY-----(.*?)-----END", (directory / "owner-key.pem").read_text(), re.S)
    raw = base64.b64decode(body.group(1))
    assert len(raw) == 64, "the owner key has 64 bytes"
    der = bytes.fromhex("302e020100300506032b657004220420") + raw[:32]
    pem = directory / "owner-pkcs8.pem"
    pem.write_text("-----BEGIN PRIVATE KEY-----\n" + base64.b64encode(der).decode() + "\n-----END PRIVATE KEY-----\n")
    pem.chmod(0o600)
    return pem, raw[32:]


def self_signed(directory, key):
    certificate = directory / "ephemeral.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-new", "-key", key, "-out", certificate, "-days", "1", "-subj", "/CN=ephemeral",
         "-addext", "extendedKeyUsage=clientAuth", "-addext", "basicConstraints=critical,CA:FALSE", "-addext", "keyUsage=digitalSignature"],
        check=True, capture_output=True)
    return certificate


def write_certificate(path, der):
    path.write_text(ssl.DER_cert_to_PEM_cert(der))


async def take_ownership(directory, address):
    curator = "metropolis.node.core.curator.proto.api."
    # Trust on first use, then everything else with the certificate that was found.
    async with Connection(address, CURATOR_PORT) as connection:
        answer = await connection.call(curator + "CuratorLocal/GetCACertificate", CONTRACT.message(curator + "GetCACertificateRequest")())
        write_certificate(directory / "ca.pem", answer.identity_ca_certificate)
    async with Connection(address, CURATOR_PORT, directory / "ca.pem") as connection:
        method = connection.method(curator + "CuratorLocal/GetCurrentLeader")
        async with method.open(timeout=DEADLINE) as stream:
            await stream.send_message(CONTRACT.message(curator + "GetCurrentLeaderRequest")(), end=True)
            leader = await stream.recv_message()
            await stream.cancel()
    key, public = owner_key(directory)
    identity = self_signed(directory, key), key
    async with Connection(leader.leader_host or address, leader.leader_port or CURATOR_PORT, directory / "ca.pem", identity) as connection:
        async with connection.method("metropolis.proto.api.AAA/Escrow").open(timeout=DEADLINE) as stream:
            request = api("EscrowRequest")()
            request.parameters.requested_identity_name = "owner"
            request.parameters.public_key = public
            await stream.send_message(request, end=True)
            answer = await stream.recv_message()
            while answer is not None and not answer.emitted_certificate:
                answer = await stream.recv_message()
    if answer is None:
        raise ValueError("the stream ended without a certificate")
    write_certificate(directory / "owner.pem", answer.emitted_certificate)
    return {"leader": leader.leader_node_id, "this": leader.this_node_id}


async def listed(connection, expression):
    nodes = []
    async with connection.method("metropolis.proto.api.Management/GetNodes").open(timeout=DEADLINE) as stream:
        await stream.send_message(api("GetNodesRequest")(filter=expression), end=True)
        async for node in stream:
            nodes.append(as_json(node))
    return nodes


def as_json(message):
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


async def parameters(connection, file):
    ticket = await connection.call("metropolis.proto.api.Management/GetRegisterTicket", api("GetRegisterTicketRequest")())
    info = await connection.call("metropolis.proto.api.Management/GetClusterInfo", api("GetClusterInfoRequest")())
    made = api("NodeParameters")()
    made.cluster_register.register_ticket = ticket.ticket
    made.cluster_register.cluster_directory.CopyFrom(info.cluster_directory)
    made.cluster_register.ca_certificate = info.ca_certificate
    pathlib.Path(file).write_bytes(made.SerializeToString())
    return {"nodes": len(info.cluster_directory.nodes)}


async def manage(directory, address, command, arguments):
    identity = directory / "owner.pem", owner_key(directory)[0]
    port = NODE_MANAGEMENT_PORT if command == "logs" else CURATOR_PORT
    management = "metropolis.proto.api.Management/"
    async with Connection(address, port, directory / "ca.pem", identity) as connection:
        match command:
            case "ticket":
                answer = await connection.call(management + "GetRegisterTicket", api("GetRegisterTicketRequest")())
                return {"bytes": len(answer.ticket)}
            case "info":
                return as_json(await connection.call(management + "GetClusterInfo", api("GetClusterInfoRequest")()))
            case "parameters":
                return await parameters(connection, *arguments)
            case "list":
                return await listed(connection, *arguments)
            case "approve":
                request = api("ApproveNodeRequest")(pubkey=bytes.fromhex(arguments[0]))
                return as_json(await connection.call(management + "ApproveNode", request))
            case "roles":
                request = api("UpdateNodeRolesRequest")(id=arguments[0])
                for role in arguments[1:]:
                    name, _, value = role.partition("=")
                    setattr(request, name, value == "true")
                return as_json(await connection.call(management + "UpdateNodeRoles", request))
            case "labels":
                request = api("UpdateNodeLabelsRequest")(id=arguments[0])
                for label in arguments[1:]:
                    if label.endswith("-"):
                        request.delete.append(label[:-1])
                    else:
                        request.upsert.add(key=label.partition("=")[0], value=label.partition("=")[2])
                return as_json(await connection.call(management + "UpdateNodeLabels", request))
            case "delete":
                request = api("DeleteNodeRequest")(id=arguments[0])
                for bypass in arguments[1:]:
                    getattr(request, "safety_bypass_" + bypass).SetInParent()
                return as_json(await connection.call(management + "DeleteNode", request))
            case "logs":
                request = api("LogsRequest")(dn=arguments[0], backlog_mode=3, backlog_count=int(arguments[1]), stream_mode=1)
                request.filters.add().with_children.SetInParent()
                entries = []
                async with connection.method("metropolis.proto.api.NodeManagement/Logs").open(timeout=DEADLINE) as stream:
                    await stream.send_message(request, end=True)
                    async for answer in stream:
                        entries += [as_json(entry) for entry in answer.backlog_entries]
                return entries
            case _:
                raise ValueError(f"there is no command {command!r}")


async def main():
    directory = pathlib.Path(sys.argv[1])
    try:
        if sys.argv[2] == "takeownership":
            answer = await take_ownership(directory, sys.argv[3])
        else:
            answer = await manage(directory, sys.argv[2], sys.argv[3], sys.argv[4:])
    except GRPCError as error:
        print(json.dumps({"code": error.status.name, "message": error.message}))
        return 1
    print(json.dumps(answer))
    return 0


sys.exit(asyncio.run(main()))
