//! Graphs as rows of a database: a row for each node and for each input of a node.

use super::{OpenDatabase, failed};
use crate::objects::sqlite::{blob, text};
use checkpoint::proto::{Field, Fields, Malformed, Writer};
use device::{Error, Result};
use graph::Code;
use rusqlite::params;
use std::collections::HashMap;

/// A node of an encoded graph; `rest` is its message without the other fields.
#[derive(Default)]
struct NodeRow<'a> {
    name: &'a [u8],
    op: &'a [u8],
    device: &'a [u8],
    inputs: Vec<&'a [u8]>,
    rest: Writer,
}

impl<'a> NodeRow<'a> {
    fn parse(message: &'a [u8]) -> std::result::Result<NodeRow<'a>, Malformed> {
        let mut node = NodeRow::default();
        for field in Fields::of(message) {
            match field? {
                (1, name) => node.name = name.bytes()?,
                (2, op) => node.op = op.bytes()?,
                (3, input) => node.inputs.push(input.bytes()?),
                (4, device) => node.device = device.bytes()?,
                (number, value) => copy(&mut node.rest, number, value),
            }
        }
        Ok(node)
    }
}

/// Appends a field to a message.
fn copy(to: &mut Writer, number: u32, value: Field<'_>) {
    match value {
        Field::Varint(value) => _ = to.varint(number, value),
        Field::Fixed64(bits) => _ = to.double(number, f64::from_bits(bits)),
        Field::Bytes(bytes) => _ = to.bytes(number, bytes),
        Field::Fixed32(bits) => _ = to.fixed32(number, bits),
    }
}

/// The end of an edge: the name of the node, the number of its output, and whether the edge is a control input.
fn parse_input(input: &[u8]) -> Result<(&[u8], i64, bool)> {
    let lost =
        || Error::new(Code::DataLoss, format!("Bad NodeDef.input: {}", String::from_utf8_lossy(input)));
    let (name, output) = match input.iter().rposition(|&b| b == b':') {
        Some(at) => {
            let number = std::str::from_utf8(&input[at + 1..]).ok().and_then(|n| n.parse().ok());
            (&input[..at], number.ok_or_else(lost)?)
        }
        None => (input, 0),
    };
    Ok(match name.strip_prefix(b"^") {
        Some(name) => (name, output, true),
        None => (name, output, false),
    })
}

impl OpenDatabase {
    /// Writes an encoded `GraphDef`, which replaces the graph of the run.
    pub(super) fn write_graph(&mut self, message: &[u8], time: f64) -> Result<()> {
        let (mut nodes, mut rest) = (Vec::new(), Writer::new());
        let malformed = |_: Malformed| Error::invalid("bad proto");
        for field in Fields::of(message) {
            match field.map_err(malformed)? {
                (1, node) => {
                    nodes.push(node.bytes().and_then(NodeRow::parse).map_err(malformed)?);
                }
                (number, value) => copy(&mut rest, number, value),
            }
        }
        let graph = self.ids.next(&self.connection)?;
        let mut numbers = HashMap::with_capacity(nodes.len());
        for (number, node) in nodes.iter().enumerate() {
            numbers.entry(node.name).or_insert(number as i64);
        }
        let connection = &self.connection;
        let mut insert_input = connection
            .prepare(
                "INSERT INTO NodeInputs (graph_id, node_id, idx, input_node_id, input_node_idx, is_control) \
                 VALUES (?, ?, ?, ?, ?, ?)",
            )
            .map_err(failed)?;
        let mut insert_node = connection
            .prepare(
                "INSERT INTO Nodes (graph_id, node_id, node_name, op, device, node_def) VALUES (?, ?, ?, ?, ?, ?)",
            )
            .map_err(failed)?;
        for (number, node) in nodes.into_iter().enumerate() {
            for (i, input) in node.inputs.iter().enumerate() {
                let (name, output, is_control) = parse_input(input)?;
                let Some(&from) = numbers.get(name) else {
                    let name = String::from_utf8_lossy(name).into_owned();
                    return Err(Error::new(Code::DataLoss, format!("Could not find node: {name}")));
                };
                let row = params![graph, number as i64, i as i64, from, output, is_control];
                insert_input.execute(row).map_err(failed)?;
            }
            let rest = node.rest.finish();
            let (name, op, device) = (text(node.name), text(node.op), text(node.device));
            insert_node
                .execute(params![graph, number as i64, name, op, device, blob(&rest)])
                .map_err(failed)?;
        }
        self.execute(
            "INSERT OR REPLACE INTO Graphs (run_id, graph_id, inserted_time, graph_def) VALUES (?, ?, ?, ?)",
            params![self.run.map(|run| run.id), graph, time, blob(&rest.finish())],
        )
    }
}
