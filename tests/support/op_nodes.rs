//! Nodes for every row of a kernel table.

use super::Fallible;
use executor::kernel::KernelDef;
use executor::kernels;
use graph::ops::spec::AttrKind;
use graph::{AttrList, AttrValue, DType, Node, Op, PartialShape, Tensor};

/// Every row of a device type's table with a node for each choice of types that it takes.
pub fn rows(device_type: &str) -> Fallible<Vec<(&'static KernelDef, Vec<Node>)>> {
    let mut rows = Vec::new();
    for op in graph::ops::all() {
        for &def in kernels::of_op(device_type, op.name()) {
            let mut nodes = vec![plain(op)?];
            for (attr, types) in def.types {
                nodes = nodes
                    .iter()
                    .flat_map(|node| types.iter().map(move |&dtype| typed(op, node, attr, dtype)))
                    .collect();
            }
            rows.push((def, nodes));
        }
    }
    Ok(rows)
}

fn typed(op: &Op, node: &Node, attr: &str, dtype: DType) -> Node {
    let is_list = op.attrs.iter().any(|spec| spec.name == attr && spec.is_list);
    let node =
        if is_list { node.clone().with_attr(attr, vec![dtype]) } else { node.clone().with_attr(attr, dtype) };
    match node.op.name() {
        "Const" => Tensor::zeros(dtype, graph::Shape::scalar())
            .map_or(node.clone(), |value| node.with_attr("value", value)),
        _ => node,
    }
}

/// A node with something for each attribute that has no default.
fn plain(op: &'static Op) -> Fallible<Node> {
    let mut node = Node::new("n", op);
    for spec in op.attrs.iter().filter(|spec| spec.default.is_none()) {
        let value: AttrValue = match (spec.kind, spec.is_list) {
            // Here and below the first that is allowed: indices are not of floats.
            (AttrKind::Type, false) => spec.allowed.first().cloned().unwrap_or(DType::Float.into()),
            (AttrKind::Type, true) => vec![DType::Float].into(),
            (AttrKind::Int, false) => 2i64.into(),
            (AttrKind::Int, true) => vec![1i64, 1, 1, 1].into(),
            (AttrKind::Str, true) => AttrValue::List(AttrList::Str(vec!["GPU".into()])),
            (AttrKind::Str, false) => spec.allowed.first().cloned().unwrap_or("SAME".into()),
            (AttrKind::Bool, _) => false.into(),
            (AttrKind::Float, true) => vec![-1.0f32, 0.0, 1.5].into(),
            (AttrKind::Float, false) => 1.0f32.into(),
            (AttrKind::Shape, _) => PartialShape::from([2usize]).into(),
            (AttrKind::Tensor, _) => Tensor::scalar(1.0f32).into(),
            (AttrKind::Func, _) => return Err(format!("{} takes a function", op.name()).into()),
        };
        node = node.with_attr(spec.name, value);
    }
    Ok(node)
}
