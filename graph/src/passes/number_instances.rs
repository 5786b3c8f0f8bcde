//! Instance numbers of the collectives of a communicator, by which the nodes of its members find each other.

use crate::graph::{Graph, NodeId};
use crate::tensor::Tensor;
use rustc_hash::FxHashMap;

/// The name of the attribute that holds a collective's instance number among the collectives of its communicator.
pub const INSTANCE_NUMBER: &str = "_instance_number";

/// The largest number of nodes that the search from a collective to the node that initializes its communicator follows.
const MAX_FORWARDED: usize = 64;

/// The communicator that a collective uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Communicator {
    /// A communicator whose group key is a constant.
    Key(i32),
    /// A communicator whose group key is not a constant: the node that creates it, or the last node found that passes
    /// it on.
    Node(NodeId),
}

/// Sets the instance number of each node that uses a communicator, for the graph of one device. The nodes of each
/// communicator are numbered in the order of their names, in which digits are compared as numbers. Nodes of different
/// members meet if they have the same number, whatever the order in which they run.
pub fn number_instances(mut graph: Graph) -> Graph {
    let mut users: FxHashMap<Communicator, Vec<NodeId>> = FxHashMap::default();
    for (id, node) in graph.nodes() {
        if let Some(slot) = node.op.inputs.iter().position(|input| input.name == "communicator") {
            users.entry(communicator(&graph, id, slot)).or_default().push(id);
        }
    }
    for mut ids in users.into_values() {
        ids.sort_by_cached_key(|id| name_order(&graph.node(*id).name));
        for (number, id) in ids.into_iter().enumerate() {
            graph.node_mut(id).attrs.set(INSTANCE_NUMBER, number as i64);
        }
    }
    graph
}

/// Returns the communicator in input `slot` of a node.
fn communicator(graph: &Graph, id: NodeId, slot: usize) -> Communicator {
    let Some(mut source) = graph.input(id, slot).map(|input| input.node) else {
        return Communicator::Node(id);
    };
    for _ in 0..MAX_FORWARDED {
        let node = graph.node(source);
        let key = node.op.inputs.iter().position(|input| input.name == "group_key");
        if let Some(key) = key.and_then(|key| graph.input(source, key)) {
            let value = graph.node(key.node).attr::<Tensor>("value").ok();
            let key = value.and_then(|value| value.item::<i32>().ok());
            return key.map_or(Communicator::Node(source), Communicator::Key);
        }
        match graph.input(source, 0) {
            Some(input) => source = input.node,
            None => break,
        }
    }
    Communicator::Node(source)
}

/// A piece of a name, either text or a number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Piece {
    /// A number without leading zeros: the count of its digits, which is compared first, and the digits.
    Number(usize, String),
    Text(String),
}

/// Returns the key by which node names are sorted, with digits compared as numbers: `x_9` stands before `x_10`.
fn name_order(name: &str) -> Vec<Piece> {
    let is_digit = |c: &char| c.is_ascii_digit();
    let mut pieces = Vec::new();
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| is_digit(&c) != is_digit(&first)).unwrap_or(rest.len());
        let (piece, tail) = rest.split_at(end);
        rest = tail;
        pieces.push(match is_digit(&first) {
            true => {
                let digits = piece.trim_start_matches('0');
                Piece::Number(digits.len(), digits.to_owned())
            }
            false => Piece::Text(piece.to_owned()),
        });
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::AttrValue;
    use crate::builder::Scope;
    use crate::error::Result;
    use crate::graph::Output;

    fn communicator(scope: &Scope, group_key: i32) -> Output {
        let [key, rank, size] = [group_key, 0, 1].map(|value| scope.constant(value));
        scope.op("CollectiveInitializeCommunicator").input(key).input(rank).input(size).output()
    }

    fn sum(scope: &Scope, name: &str, communicator: Output) {
        let (x, all) = (scope.constant(1f32), scope.constant_vector::<i32>(&[]));
        let call = scope.op("CollectiveReduceV3").name(name).input(x).input(communicator).input(all);
        call.attr("reduction", "Add").node();
    }

    #[test]
    fn collectives_are_numbered_by_name_for_each_communicator() -> Result<()> {
        let scope = Scope::new();
        let of_same_key = scope.op("Identity").input(communicator(&scope, 1)).output();
        sum(&scope, "x_10", communicator(&scope, 1));
        sum(&scope, "x_9", of_same_key);
        sum(&scope, "other", communicator(&scope, 2));
        let graph = number_instances(scope.finish()?);
        let number = |name: &str| graph.node(graph.find(name)?).attrs.get(INSTANCE_NUMBER).cloned();
        for (name, expected) in [("x_9", 0), ("x_10", 1), ("other", 0)] {
            assert_eq!(number(name), Some(AttrValue::Int(expected)), "{name}");
        }
        Ok(())
    }
}
