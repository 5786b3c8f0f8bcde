//! Conversions of functions and function libraries. Fields that the types of `graph` do not have are stored,
//! serialised, in `opaque` fields.

use super::attr::{attr_from_proto, attr_to_proto, dtype_from_proto};
use super::budget::Budget;
use super::graph::{AttrCache, attrs_from_proto, unreadable};
use crate::pb;
use graph::function::{ArgDef, ArgDefType, AttrDef, FunctionNode};
use graph::{Attrs, Error, FunctionDef, FunctionLibrary, Result};
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;

type AttrMap = BTreeMap<String, pb::AttrValue>;

/// Adds the functions of a library message.
///
/// # Errors
/// `InvalidArgument`, with the function's name, for a function or a gradient that contradicts an existing
/// one, and for a malformed function.
pub(super) fn library_from_proto(
    library: &mut FunctionLibrary,
    def: pb::FunctionDefLibrary,
    budget: &mut Budget,
) -> Result<()> {
    let mut cache = AttrCache::default();
    for function in def.function {
        let name = function.signature.as_ref().map(|s| s.name.clone()).unwrap_or_default();
        let function = function_from_proto(function, budget, &mut cache)
            .map_err(|e| Error::Invalid { code: e.code(), message: format!("function {name}: {e}") })?;
        library.add(function)?;
    }
    for pb::GradientDef { function_name, gradient_func } in def.gradient {
        library.add_gradient(&function_name.into(), &gradient_func.into())?;
    }
    for pb::RegisteredGradient { gradient_func, registered_op_type } in def.registered_gradients {
        library.add_registered_gradient(&gradient_func.into(), &registered_op_type.into());
    }
    Ok(())
}

pub(super) fn library_to_proto(library: &FunctionLibrary) -> Result<pb::FunctionDefLibrary> {
    Ok(pb::FunctionDefLibrary {
        function: library.functions().iter().map(|f| function_to_proto(f)).collect::<Result<_>>()?,
        gradient: library
            .gradients()
            .iter()
            .map(|(f, g)| pb::GradientDef { function_name: f.to_string(), gradient_func: g.to_string() })
            .collect(),
        registered_gradients: library
            .registered_gradients()
            .iter()
            .map(|(g, op)| pb::RegisteredGradient {
                gradient_func: g.to_string(),
                registered_op_type: op.to_string(),
            })
            .collect(),
    })
}

fn function_from_proto(
    def: pb::FunctionDef,
    budget: &mut Budget,
    cache: &mut AttrCache,
) -> Result<FunctionDef> {
    let pb::FunctionDef { signature, node_def, ret, attr, control_ret, arg_attr, resource_arg_unique_id } =
        def;
    let signature = signature.ok_or_else(|| Error::invalid("it has no signature"))?;
    let pb::OpDef { name, input_arg, output_arg, attr: attr_defs, is_stateful, control_output, .. } =
        signature.clone();
    let mut left = pb::FunctionDef { resource_arg_unique_id, ..Default::default() };
    let rest = pb::OpDef {
        name: String::new(),
        input_arg: Vec::new(),
        output_arg: Vec::new(),
        attr: Vec::new(),
        is_stateful: false,
        control_output: Vec::new(),
        ..signature
    };
    if rest != pb::OpDef::default() {
        left.signature = Some(rest);
    }
    let (attrs, unread) = attrs_from_proto(attr, budget, cache, |_| false)?;
    left.attr = unread;
    let mut arg_attrs = BTreeMap::new();
    for (position, of_arg) in arg_attr {
        let (attrs, unread) = attrs_from_proto(of_arg.attr, budget, cache, |_| false)?;
        arg_attrs.insert(position, attrs);
        if !unread.is_empty() {
            left.arg_attr.insert(position, pb::function_def::ArgAttrs { attr: unread });
        }
    }
    let text_map = |map: BTreeMap<String, String>| -> BTreeMap<Arc<str>, Arc<str>> {
        map.into_iter().map(|(k, v)| (k.into(), v.into())).collect()
    };
    Ok(FunctionDef {
        name: name.into(),
        args: input_arg.into_iter().map(arg_from_proto).collect::<Result<_>>()?,
        outputs: output_arg.into_iter().map(arg_from_proto).collect::<Result<_>>()?,
        attr_defs: attr_defs.into_iter().map(|a| attr_def_from_proto(a, budget)).collect::<Result<_>>()?,
        is_stateful,
        control_outputs: control_output.into_iter().map(Into::into).collect(),
        nodes: node_def.into_iter().map(|n| node_from_proto(n, budget, cache)).collect::<Result<_>>()?,
        returns: text_map(ret),
        control_returns: text_map(control_ret),
        attrs,
        arg_attrs,
        opaque: opaque(&left),
    })
}

fn function_to_proto(function: &FunctionDef) -> Result<pb::FunctionDef> {
    let mut def: pb::FunctionDef = decode_opaque(&function.opaque, &function.name)?;
    let mut signature = def.signature.unwrap_or_default();
    signature.name = function.name.to_string();
    let args = |args: &[ArgDef]| args.iter().map(arg_to_proto).collect::<Result<Vec<_>>>();
    signature.input_arg = args(&function.args)?;
    signature.output_arg = args(&function.outputs)?;
    signature.attr = function.attr_defs.iter().map(attr_def_to_proto).collect::<Result<_>>()?;
    signature.is_stateful = function.is_stateful;
    signature.control_output = function.control_outputs.iter().map(|n| n.to_string()).collect();
    def.signature = Some(signature);
    def.node_def = function.nodes.iter().map(node_to_proto).collect::<Result<_>>()?;
    let text_map = |map: &BTreeMap<Arc<str>, Arc<str>>| {
        map.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    };
    def.ret = text_map(&function.returns);
    def.control_ret = text_map(&function.control_returns);
    add_attrs(&mut def.attr, &function.attrs);
    for (position, attrs) in &function.arg_attrs {
        add_attrs(&mut def.arg_attr.entry(*position).or_default().attr, attrs);
    }
    Ok(def)
}

fn arg_from_proto(def: pb::op_def::ArgDef) -> Result<ArgDef> {
    let pb::op_def::ArgDef { name, r#type, type_attr, number_attr, type_list_attr, is_ref, .. } = def.clone();
    let ty = if !type_list_attr.is_empty() {
        ArgDefType::List(type_list_attr.into())
    } else if !type_attr.is_empty() {
        ArgDefType::Attr(type_attr.into())
    } else {
        let dtype = dtype_from_proto(r#type);
        ArgDefType::Fixed(dtype.map_err(|e| Error::invalid(format!("argument '{name}': {e}")))?)
    };
    let left = pb::op_def::ArgDef {
        description: def.description,
        handle_data: def.handle_data,
        experimental_full_type: def.experimental_full_type,
        ..Default::default()
    };
    Ok(ArgDef {
        name: name.into(),
        ty,
        number_attr: (!number_attr.is_empty()).then(|| number_attr.into()),
        is_ref,
        opaque: opaque(&left),
    })
}

fn arg_to_proto(arg: &ArgDef) -> Result<pb::op_def::ArgDef> {
    let mut def: pb::op_def::ArgDef = decode_opaque(&arg.opaque, &arg.name)?;
    def.name = arg.name.to_string();
    match &arg.ty {
        ArgDefType::Fixed(dtype) => def.r#type = dtype.number(),
        ArgDefType::Attr(name) => def.type_attr = name.to_string(),
        ArgDefType::List(name) => def.type_list_attr = name.to_string(),
    }
    def.number_attr = arg.number_attr.as_ref().map(|n| n.to_string()).unwrap_or_default();
    def.is_ref = arg.is_ref;
    Ok(def)
}

fn attr_def_from_proto(def: pb::op_def::AttrDef, budget: &mut Budget) -> Result<AttrDef> {
    let pb::op_def::AttrDef { name, r#type, default_value, .. } = def.clone();
    let default = default_value.map(|v| attr_from_proto(v, budget)).transpose()?;
    let left = pb::op_def::AttrDef { name: String::new(), r#type: String::new(), default_value: None, ..def };
    Ok(AttrDef { name: name.into(), kind: r#type.into(), default, opaque: opaque(&left) })
}

fn attr_def_to_proto(attr: &AttrDef) -> Result<pb::op_def::AttrDef> {
    let mut def: pb::op_def::AttrDef = decode_opaque(&attr.opaque, &attr.name)?;
    def.name = attr.name.to_string();
    def.r#type = attr.kind.to_string();
    def.default_value = attr.default.as_ref().map(attr_to_proto);
    Ok(def)
}

fn node_from_proto(def: pb::NodeDef, budget: &mut Budget, cache: &mut AttrCache) -> Result<FunctionNode> {
    let pb::NodeDef { name, op, input, device, attr, experimental_debug_info, experimental_type } = def;
    let row = graph::ops::lookup(&op);
    let (attrs, unread) =
        attrs_from_proto(attr, budget, cache, |key| row.is_some_and(|r| r.attr_spec(key).is_some()))
            .map_err(|e| e.at_node(&name))?;
    let left = pb::NodeDef { attr: unread, experimental_debug_info, experimental_type, ..Default::default() };
    Ok(FunctionNode {
        name: name.into(),
        op: cache.intern(&op),
        device: cache.intern(&device),
        attrs,
        inputs: input.into_iter().map(Into::into).collect(),
        opaque: opaque(&left),
    })
}

fn node_to_proto(node: &FunctionNode) -> Result<pb::NodeDef> {
    let mut def: pb::NodeDef = decode_opaque(&node.opaque, &node.name)?;
    def.name = node.name.to_string();
    def.op = node.op.to_string();
    def.device = node.device.to_string();
    def.input = node.inputs.iter().map(|i| i.to_string()).collect();
    add_attrs(&mut def.attr, &node.attrs);
    Ok(def)
}

fn add_attrs(to: &mut AttrMap, attrs: &Attrs) {
    to.extend(attrs.iter().map(|(name, value)| (name.to_string(), attr_to_proto(value))));
}

/// Encodes a message that holds only fields that the types of `graph` do not have; `None` if none of them is set.
fn opaque(left: &impl Message) -> Option<Arc<[u8]>> {
    let bytes = left.encode_to_vec();
    (!bytes.is_empty()).then(|| bytes.into())
}

/// Decodes a message that [`opaque`] has encoded; errors name `of`, the function, argument, attribute or node of the
/// message.
fn decode_opaque<M: Message + Default>(opaque: &Option<Arc<[u8]>>, of: &str) -> Result<M> {
    match opaque {
        Some(bytes) => M::decode(&bytes[..]).map_err(|e| unreadable(of, e)),
        None => Ok(M::default()),
    }
}
