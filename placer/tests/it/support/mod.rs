//! Test helpers: graphs from short texts, devices, and kernels.
#![allow(dead_code, unreachable_pub)]

use anabranch_placer::{DeviceSet, Kernels};
use graph::ops::spec::{AttrKind, AttrSpec};
use graph::{
    AttrList, AttrValue, Attrs, CONTROL, DType, DeviceName, Graph, Importer, Node, PartialShape, Shape,
    TaskName, Tensor, ops,
};
use std::error::Error;
use std::fmt::Write;

pub type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Parses a graph from lines `name = Op(input, input:1, ^control) @device [class, class] attr=type`.
/// Attributes that are missing and have no default get an arbitrary value.
pub fn graph_of(text: &str) -> Result<Graph> {
    let mut importer = Importer::new(Graph::new());
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let (name, rest) = line.split_once(" = ").ok_or("no =")?;
        let (op, rest) = rest.split_once('(').ok_or("no (")?;
        let (inputs, rest) = rest.split_once(')').ok_or("no )")?;
        let mut attrs = Attrs::new();
        let mut device = "";
        if let Some(classes) = rest.split_once('[').and_then(|r| r.1.split_once(']')) {
            let classes = classes.0.split(", ").map(|c| format!("loc:@{c}").into()).collect();
            attrs.set("_class", AttrValue::List(AttrList::Str(classes)));
        }
        for word in rest.split_whitespace() {
            if let Some(text) = word.strip_prefix('@') {
                device = text;
            } else if let Some((attr, value)) = word.split_once('=') {
                match (DType::from_name(value), value.parse::<i64>()) {
                    (Some(dtype), _) => attrs.set(attr, dtype),
                    (_, Ok(number)) => attrs.set(attr, number),
                    _ => attrs.set(attr, value),
                }
            }
        }
        let found = ops::lookup(op).ok_or_else(|| format!("no op {op}"))?;
        for spec in found.attrs.iter().filter(|s| s.default.is_none()) {
            if attrs.get(spec.name).is_none() {
                attrs.set(spec.name, arbitrary_value(spec)?);
            }
        }
        let inputs = inputs.split(", ").filter(|i| !i.is_empty());
        importer.add(name, op, device, attrs, inputs)?;
    }
    Ok(importer.finish()?)
}

fn arbitrary_value(spec: &AttrSpec) -> Result<AttrValue> {
    Ok(match spec.kind {
        AttrKind::Type => AttrValue::Type(DType::Float),
        AttrKind::Shape => AttrValue::Shape(PartialShape::scalar()),
        AttrKind::Tensor => AttrValue::Tensor(Tensor::zeros(DType::Float, Shape::scalar())?),
        AttrKind::Int => AttrValue::Int(1),
        AttrKind::Str => spec.name.into(),
        other => return Err(format!("attr of kind {}", other.name()).into()),
    })
}

/// Returns a set of devices given by short names `ps:0/CPU:0`, in that order, with incarnations 1, 2, ….
pub fn devices(names: &[&str]) -> Result<DeviceSet> {
    let mut all = Vec::new();
    for (i, name) in names.iter().enumerate() {
        all.push((device(name)?, i as u64 + 1));
    }
    Ok(DeviceSet::new(all))
}

/// Parses a short device name such as `ps:0/CPU:0`.
pub fn device(name: &str) -> Result<DeviceName> {
    let (task, device) = name.split_once('/').ok_or("no /")?;
    let (job, task) = task.split_once(':').ok_or("no :")?;
    let (kind, id) = device.split_once(':').ok_or("no :")?;
    Ok(DeviceName::new(&TaskName::new(job, task.parse()?), kind, id.parse()?))
}

/// Returns one parameter server and two workers, with the first worker as the local process.
pub fn small_cluster() -> Result<DeviceSet> {
    Ok(devices(&["ps:0/CPU:0", "worker:0/CPU:0", "worker:1/CPU:0"])?.with_local(TaskName::new("worker", 0)))
}

/// Kernels on the CPU for every op except those in `without`, and on GPUs for the ops in `gpu`.
#[derive(Debug, Default)]
pub struct TestKernels {
    pub without: &'static [&'static str],
    pub gpu: &'static [(&'static str, i32)],
}

impl Kernels for TestKernels {
    fn priority(&self, device_type: &str, node: &Node) -> Option<i32> {
        match device_type {
            "CPU" => (!self.without.contains(&node.op.name())).then_some(0),
            "GPU" => self.gpu.iter().find(|(op, _)| *op == node.op.name()).map(|(_, priority)| *priority),
            _ => None,
        }
    }

    fn registered(&self, op: &str) -> String {
        let mut text = String::new();
        if self.gpu.iter().any(|(name, _)| *name == op) {
            text.push_str("  device='GPU'; T in [DT_FLOAT]\n");
        }
        if !self.without.contains(&op) {
            text.push_str("  device='CPU'\n");
        }
        if text.is_empty() { "  <no registered kernels>\n".to_owned() } else { text }
    }
}

/// Formats a graph as text, with the attributes that tests of transfers check.
pub fn print(graph: &Graph) -> String {
    let mut text = String::new();
    for (id, node) in graph.nodes() {
        let mut inputs: Vec<String> = Vec::new();
        for input in graph.inputs(id) {
            let source = &graph.node(input.node).name;
            inputs.push(if input.index == 0 {
                source.to_string()
            } else {
                format!("{source}:{}", input.index)
            });
        }
        inputs.extend(graph.control_inputs(id).iter().map(|c| format!("^{}", graph.node(*c).name)));
        let device = node.device.replace("/job:", "").replace("/replica:0/task", "").replace("/device:", "/");
        let _ = write!(text, "{} = {}({}) @{device}", node.name, node.op.name(), inputs.join(", "));
        if node.op.name() == "_Send" || node.op.name() == "_Recv" {
            for (name, value) in node.attrs.iter() {
                let value = match value {
                    AttrValue::Str(s) => String::from_utf8_lossy(s)
                        .replace("/job:", "")
                        .replace("/replica:0/task", "")
                        .replace("/device:", "/"),
                    AttrValue::Int(i) => i.to_string(),
                    AttrValue::Type(t) => t.to_string(),
                    AttrValue::Bool(b) => b.to_string(),
                    other => format!("{other:?}"),
                };
                let name = name.replace("tensor_type", "T").replace("send_device_incarnation", "incarnation");
                let _ = write!(text, " {name}={value}");
            }
        }
        text.push('\n');
    }
    text
}

/// Returns whether the port is that of control edges.
pub fn is_control(port: u32) -> bool {
    port == CONTROL
}
