//! Functions in the text format: from `%function` to `%end`, a directive for each part of the signature, and a line
//! for each node.

use super::cursor::Cursor;
use super::{parse, print};
use crate::attr::Attrs;
use crate::dtype::DType;
use crate::error::Result;
use crate::function::{ArgDef, ArgDefType, AttrDef, FunctionDef, FunctionLibrary, FunctionNode};
use std::sync::Arc;

pub(super) fn print_library(out: &mut String, library: &FunctionLibrary) {
    for function in library.functions() {
        print_function(out, function);
    }
    let pairs =
        [("%gradient ", library.gradients()), ("%registered_gradient ", library.registered_gradients())];
    for (directive, pairs) in pairs {
        for (first, second) in pairs {
            line(out, directive, |out| {
                print::name(out, first);
                out.push(' ');
                print::name(out, second);
            });
        }
    }
}

fn line(out: &mut String, directive: &str, rest: impl FnOnce(&mut String)) {
    out.push_str(directive);
    rest(out);
    out.push('\n');
}

fn print_function(out: &mut String, function: &FunctionDef) {
    line(out, "%function ", |out| {
        print::name(out, &function.name);
        print::attrs(out, &function.attrs);
        if function.is_stateful {
            out.push_str(" stateful");
        }
        opaque(out, &function.opaque);
    });
    for attr in &function.attr_defs {
        line(out, "  %attr ", |out| {
            print::name(out, &attr.name);
            out.push(' ');
            print::string(out, attr.kind.as_bytes());
            if let Some(default) = &attr.default {
                out.push_str(" = ");
                print::value(out, default);
            }
            opaque(out, &attr.opaque);
        });
    }
    for (directive, args) in [("  %arg ", &function.args), ("  %output ", &function.outputs)] {
        args.iter().for_each(|arg| line(out, directive, |out| print_arg(out, arg)));
    }
    for (position, attrs) in &function.arg_attrs {
        line(out, "  %arg_attrs ", |out| {
            out.push_str(&position.to_string());
            print::attrs(out, attrs);
        });
    }
    for name in &function.control_outputs {
        line(out, "  %control_output ", |out| print::name(out, name));
    }
    for node in &function.nodes {
        line(out, "  ", |out| print_node(out, node));
    }
    let returns = [("  %return ", &function.returns), ("  %control_return ", &function.control_returns)];
    for (directive, returns) in returns {
        for (name, source) in returns {
            line(out, directive, |out| {
                print::name(out, name);
                out.push_str(" = ");
                print::name(out, source);
            });
        }
    }
    out.push_str("%end\n");
}

fn print_arg(out: &mut String, arg: &ArgDef) {
    print::name(out, &arg.name);
    out.push_str(": ");
    if arg.is_ref {
        out.push('&');
    }
    if let Some(number) = &arg.number_attr {
        out.push('$');
        print::name(out, number);
        out.push_str(" * ");
    }
    match &arg.ty {
        ArgDefType::Fixed(dtype) => out.push_str(dtype.name()),
        ArgDefType::Attr(name) => {
            out.push('$');
            print::name(out, name);
        }
        ArgDefType::List(name) => {
            out.push_str("[$");
            print::name(out, name);
            out.push(']');
        }
    }
    opaque(out, &arg.opaque);
}

fn print_node(out: &mut String, node: &FunctionNode) {
    print::name(out, &node.name);
    out.push_str(" = ");
    print::name(out, &node.op);
    print::attrs(out, &node.attrs);
    if !node.inputs.is_empty() {
        out.push('(');
        print::list(out, &node.inputs, |out, input| match input.strip_prefix('^') {
            Some(name) => {
                out.push('^');
                print::name(out, name);
            }
            None => print::name(out, input),
        });
        out.push(')');
    }
    if !node.device.is_empty() {
        out.push_str(" @");
        print::string(out, node.device.as_bytes());
    }
    opaque(out, &node.opaque);
}

fn opaque(out: &mut String, opaque: &Option<Arc<[u8]>>) {
    if let Some(bytes) = opaque {
        out.push_str(" %");
        print::hex(out, bytes);
    }
}

/// Parses one line inside a function. Returns whether the line ended the function.
pub(super) fn parse_line(cursor: &mut Cursor<'_>, function: &mut FunctionDef) -> Result<bool> {
    if !cursor.take("%") {
        let node = parse_node(cursor)?;
        function.nodes.push(node);
        return Ok(false);
    }
    match cursor.word() {
        "end" => return Ok(true),
        "arg" => function.args.push(parse_arg(cursor)?),
        "output" => function.outputs.push(parse_arg(cursor)?),
        "control_output" => function.control_outputs.push(cursor.name()?.into()),
        "arg_attrs" => {
            let position = cursor.parse("the number of an argument")?;
            function.arg_attrs.insert(position, parse::attrs(cursor, 0)?);
        }
        "attr" => {
            let name = cursor.name()?.into();
            let kind = cursor.name()?.into();
            let default = if cursor.take("=") { Some(parse::value(cursor, 0)?) } else { None };
            function.attr_defs.push(AttrDef { name, kind, default, opaque: parse_opaque(cursor)? });
        }
        "return" => {
            let (name, source) = parse_return(cursor)?;
            function.returns.insert(name, source);
        }
        "control_return" => {
            let (name, source) = parse_return(cursor)?;
            function.control_returns.insert(name, source);
        }
        other => return Err(cursor.error(format!("unknown directive '%{other}' in a function"))),
    }
    Ok(false)
}

/// Parses the rest of a `%function` line.
pub(super) fn parse_head(cursor: &mut Cursor<'_>) -> Result<FunctionDef> {
    let mut function = FunctionDef::new(cursor.name()?);
    function.attrs = parse::attrs(cursor, 0)?;
    function.is_stateful = cursor.take("stateful");
    function.opaque = parse_opaque(cursor)?;
    Ok(function)
}

fn parse_return(cursor: &mut Cursor<'_>) -> Result<(Arc<str>, Arc<str>)> {
    let name = cursor.name()?.into();
    cursor.expect("=")?;
    Ok((name, cursor.name()?.into()))
}

fn parse_arg(cursor: &mut Cursor<'_>) -> Result<ArgDef> {
    let name = cursor.name()?.into();
    cursor.expect(":")?;
    let is_ref = cursor.take("&");
    let mut number_attr = None;
    let mut ty = parse_type(cursor)?;
    if cursor.take("*") {
        let ArgDefType::Attr(number) = ty else { return cursor.expected("the name of a number before '*'") };
        number_attr = Some(number);
        ty = parse_type(cursor)?;
    }
    Ok(ArgDef { name, ty, number_attr, is_ref, opaque: parse_opaque(cursor)? })
}

fn parse_type(cursor: &mut Cursor<'_>) -> Result<ArgDefType> {
    if cursor.take("$") {
        return Ok(ArgDefType::Attr(cursor.name()?.into()));
    }
    if cursor.take("[$") {
        let name = cursor.name()?.into();
        cursor.expect("]")?;
        return Ok(ArgDefType::List(name));
    }
    let word = cursor.word();
    match DType::from_name(word) {
        Some(dtype) => Ok(ArgDefType::Fixed(dtype)),
        None => Err(cursor.error(format!("'{word}' is no type"))),
    }
}

fn parse_node(cursor: &mut Cursor<'_>) -> Result<FunctionNode> {
    let name = cursor.name()?.into();
    cursor.expect("=")?;
    let op = cursor.name()?.into();
    let attrs: Attrs = parse::attrs(cursor, 0)?;
    let inputs = match cursor.take("(") {
        true => parse::list(cursor, ")", |cursor| {
            let control = if cursor.take("^") { "^" } else { "" };
            Ok([control, &cursor.name()?].concat().into())
        })?,
        false => Vec::new(),
    };
    let device = if cursor.take("@") { cursor.name()?.into() } else { "".into() };
    Ok(FunctionNode { name, op, device, attrs, inputs, opaque: parse_opaque(cursor)? })
}

fn parse_opaque(cursor: &mut Cursor<'_>) -> Result<Option<Arc<[u8]>>> {
    Ok(if cursor.take("%") { Some(cursor.hex()?.into()) } else { None })
}
