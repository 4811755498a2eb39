//! Reads from compiled schemas who may call which RPC, and writes it down as a table for the crate.
//!
//! prost drops method options, so that they have to be read here; and an RPC whose author forgot to say who may call it
//! must not be built at all. A part of the build script, and of the test that shows what it refuses.

use std::borrow::Cow;
use std::fmt::Write;

use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, ExtensionDescriptor, MethodDescriptor, ReflectMessage, Value,
};

const OPTION: &str = "metropolis.proto.ext.authorization";
const PERMISSION: &str = "metropolis.proto.ext.Permission";

/// The table of all RPCs as an expression of type `&'static [Method]`, ordered by path.
pub(crate) fn table(pool: &DescriptorPool) -> Result<String, String> {
    let option = pool.get_extension_by_name(OPTION).ok_or_else(|| format!("no schema declares {OPTION}"))?;
    let mut methods = pool
        .services()
        .flat_map(|service| service.methods().collect::<Vec<_>>())
        .map(|method| Ok((path(&method), entry(&method, &option)?)))
        .collect::<Result<Vec<_>, String>>()?;
    methods.sort();
    let mut table = "&[\n".to_owned();
    for (_, entry) in methods {
        table += &entry;
    }
    table += "]\n";
    Ok(table)
}

/// As gRPC calls it.
fn path(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

/// One RPC, as an element of the table.
fn entry(method: &MethodDescriptor, option: &ExtensionDescriptor) -> Result<String, String> {
    let authorization =
        authorization(&method.options(), option).map_err(|problem| format!("{}: {problem}", path(method)))?;
    let mut entry = String::new();
    writeln!(
        entry,
        "    Method {{ path: {:?}, service: {:?}, name: {:?}, authorization: {authorization}, client_streaming: {}, \
         server_streaming: {} }},",
        path(method),
        method.parent_service().full_name(),
        method.name(),
        method.is_client_streaming(),
        method.is_server_streaming(),
    )
    .map_err(|error| error.to_string())?;
    Ok(entry)
}

/// What the options of a method say about its callers, as an expression of type `Authorization`.
fn authorization(options: &DynamicMessage, option: &ExtensionDescriptor) -> Result<String, String> {
    if !options.has_extension(option) {
        return Err(format!("has no option {OPTION}"));
    }
    let value = options.get_extension(option);
    let value = value.as_message().ok_or("has an authorization that is not a message")?;
    let need = permissions(value)?;
    let unauthenticated = field(value, "allow_unauthenticated")?.as_bool().unwrap_or_default();
    match (need.is_empty(), unauthenticated) {
        (true, true) => Ok("Authorization::AllowUnauthenticated".to_owned()),
        (false, false) => Ok(format!("Authorization::Need(&[{}])", need.join(", "))),
        (true, false) => Err("has an authorization with neither need nor allow_unauthenticated".to_owned()),
        (false, true) => Err("has an authorization with both need and allow_unauthenticated".to_owned()),
    }
}

/// The needed permissions, each as prost names the variant of the generated enum.
fn permissions(authorization: &DynamicMessage) -> Result<Vec<String>, String> {
    let permission = authorization
        .descriptor()
        .parent_pool()
        .get_enum_by_name(PERMISSION)
        .ok_or_else(|| format!("no schema declares {PERMISSION}"))?;
    let need = field(authorization, "need")?;
    need.as_list()
        .unwrap_or_default()
        .iter()
        .map(|number| {
            let number = number.as_enum_number().ok_or("has a permission that is not of an enum")?;
            let value = permission.get_value(number).ok_or_else(|| format!("needs permission {number}, unknown"))?;
            if number == 0 {
                return Err(format!("needs {}, which nobody can hold", value.name()));
            }
            Ok(format!("Permission::{}", variant(value.name())))
        })
        .collect()
}

fn field<'a>(message: &'a DynamicMessage, name: &str) -> Result<Cow<'a, Value>, String> {
    message.get_field_by_name(name).ok_or_else(|| format!("has an authorization without a field {name}"))
}

/// `PERMISSION_READ_NODE_LOGS` becomes `ReadNodeLogs`.
fn variant(name: &str) -> String {
    let words = name.strip_prefix("PERMISSION_").unwrap_or(name).split('_');
    words.map(|word| word.chars().take(1).chain(word.to_lowercase().chars().skip(1)).collect::<String>()).collect()
}
