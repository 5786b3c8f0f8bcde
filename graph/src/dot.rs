//! Conversion of graphs to Graphviz text.

use crate::graph::Graph;
use crate::topology::Topology;
use std::collections::BTreeMap;
use std::fmt::Write;

impl Graph {
    /// Returns the graph in the Graphviz language: a box per node, a cluster per device, dashed control edges. Edges
    /// are labelled with their ports unless both ports are 0.
    pub fn to_dot(&self) -> String {
        let mut clusters: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for (id, node) in self.nodes() {
            clusters.entry(&node.device).or_default().push((id, node));
        }
        let mut out = String::from("digraph {\n  rankdir=TB;\n  node [shape=box, fontsize=10];\n");
        for (i, (device, nodes)) in clusters.into_iter().enumerate() {
            let indent = if device.is_empty() { "  " } else { "    " };
            if !device.is_empty() {
                let _ = writeln!(out, "  subgraph cluster_{i} {{\n    label={};", quoted(&[device]));
            }
            for (id, node) in nodes {
                let label = quoted(&[&node.name, node.op.name()]);
                let _ = writeln!(out, "{indent}n{} [label={label}];", id.index());
            }
            if !device.is_empty() {
                out.push_str("  }\n");
            }
        }
        let topology = Topology::new(self);
        for to in self.ids() {
            for producer in topology.producers(to) {
                let _ = write!(out, "  n{} -> n{}", producer.node.index(), to.index());
                out.push_str(&match (producer.is_control(), producer.output, producer.input) {
                    (true, ..) => " [style=dashed];\n".to_owned(),
                    (_, 0, 0) => ";\n".to_owned(),
                    (_, output, input) => format!(" [label=\"{output}:{input}\"];\n"),
                });
            }
        }
        out.push_str("}\n");
        out
    }
}

/// Returns the lines as one quoted string literal.
fn quoted(lines: &[&str]) -> String {
    let escape = |line: &&str| line.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ");
    format!("\"{}\"", lines.iter().map(escape).collect::<Vec<_>>().join("\\n"))
}
