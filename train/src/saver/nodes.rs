//! The nodes of a saver: for each task, the nodes that snapshot, write and restore its variables.

use crate::initializer::strings;
use crate::variables::Variable;
use graph::{DType, NodeId, Output, PartialShape, Scope};

/// The nodes of a saver, for all shards of its checkpoints.
#[derive(Debug)]
pub(super) struct SaverNodes {
    pub(super) shards: Vec<Shard>,
    pub(super) snapshot: Vec<NodeId>,
    /// Writes every shard, then merges the shards into one checkpoint with the prefix `destination`.
    pub(super) write: NodeId,
    /// A no-op on the task that merges the checkpoint; it fails if this replica has been deposed as the chief.
    pub(super) confirm: NodeId,
    /// The prefix of the checkpoint to write, a scalar `string` to be fed.
    pub(super) destination: Output,
    /// The prefix of the checkpoint to read, a scalar `string` to be fed.
    pub(super) source: Output,
    /// True if steps have priority over writing, a scalar `bool` to be fed.
    pub(super) behind_steps: Output,
}

/// The part of a checkpoint with the variables of one task.
#[derive(Debug)]
pub(super) struct Shard {
    /// The names of the shard's variables.
    pub(super) variables: Vec<String>,
    /// The prefix of the shard's files, a scalar `string` to be fed.
    pub(super) prefix: Output,
    pub(super) restore: NodeId,
}

impl SaverNodes {
    /// Adds the nodes that save and restore `variables`.
    pub(super) fn new(scope: &Scope, variables: &[Variable]) -> SaverNodes {
        let scope = scope.name_scope("save");
        let path = |name: &str| scope.placeholder(name, DType::String, PartialShape::scalar());
        let (destination, source) = (path("destination"), path("source"));
        let behind_steps = scope.placeholder("behind_steps", DType::Bool, PartialShape::scalar());
        let (mut shards, mut snapshot, mut writes) = (Vec::new(), Vec::new(), Vec::new());
        for (i, variables) in group_by_device(&scope, variables).into_iter().enumerate() {
            let prefix = path(&format!("shard_{i}"));
            let nodes = ShardNodes::new(&scope, &variables, prefix, source, behind_steps);
            snapshot.push(nodes.snapshot);
            writes.push(nodes.write);
            let variables = variables.into_iter().map(|v| v.name).collect();
            shards.push(Shard { variables, prefix, restore: nodes.restore });
        }
        let prefixes: Vec<Output> = shards.iter().map(|shard| shard.prefix).collect();
        let at = variables.first().map_or_else(|| scope.clone(), |first| scope.host_of(first.handle.node));
        let joins = at.control(&writes);
        let write = joins.merge_checkpoints(joins.pack(&prefixes, 0), destination);
        SaverNodes { shards, snapshot, write, confirm: at.no_op(), destination, source, behind_steps }
    }
}

/// The nodes that snapshot, write and restore the variables of one shard.
struct ShardNodes {
    snapshot: NodeId,
    write: NodeId,
    restore: NodeId,
}

impl ShardNodes {
    /// Adds the nodes that snapshot, write and restore `variables`: at least one variable, all with the same device
    /// string.
    fn new(
        scope: &Scope,
        variables: &[Variable],
        prefix: Output,
        source: Output,
        behind_steps: Output,
    ) -> ShardNodes {
        // One process holds all variables of the shard and their snapshot. The device string may be partial, so the
        // variables may be on several devices of that process.
        let first = variables[0].handle.node;
        let (beside, host) = (scope.colocate_with(first), scope.host_of(first));
        let types: Vec<DType> = variables.iter().map(|v| v.dtype).collect();
        // The snapshot is named after the shard's placeholder, whose name is unique in the graph, so that each saver
        // has its own snapshot.
        let shared_name = scope.read(|g, _| g.node(prefix.node).name.to_string()).unwrap_or_default();
        let snapshot_of = |v: &Variable| {
            let at = scope.colocate_with(v.handle.node);
            at.op("SetAsideVariable").input(v.handle).output()
        };
        let snapshots: Vec<Output> = variables.iter().map(snapshot_of).collect();
        let snapshot =
            beside.op("KeepSnapshot").input(snapshots).attr("shared_name", shared_name.clone()).node();
        let names = strings(&host, variables.iter().map(|v| saved_name(v).to_owned()));
        let slices = strings(&host, variables.iter().map(slice_spec));
        let write = beside.op("SaveSnapshot").input(prefix).input(names).input(slices);
        let write = write.input(behind_steps).attr("shared_name", shared_name).node();
        let read =
            host.op("RestoreV2").input(source).input(names).input(slices).attr("dtypes", types).outputs();
        let assigns: Vec<NodeId> = variables
            .iter()
            .zip(read)
            .map(|(v, value)| {
                let dims: Vec<i64> = v.shape.iter().map(|&d| d as i64).collect();
                scope.colocate_with(v.handle.node).assign_variable(v.handle, host.reshape(value, &dims))
            })
            .collect();
        ShardNodes { snapshot, write, restore: host.group(&assigns) }
    }
}

/// Returns the name under which a variable is saved. A part of a partitioned variable is saved as a slice of the whole
/// variable.
fn saved_name(variable: &Variable) -> &str {
    variable.slice.as_ref().map_or(&variable.name, |whole| &whole.name)
}

/// Returns the slice specification of `SaveV2` and `RestoreV2`; empty for a variable that is not a part.
fn slice_spec(variable: &Variable) -> String {
    let Some(whole) = &variable.slice else { return String::new() };
    let sizes = whole.shape.iter().map(|d| format!("{d} ")).collect::<String>();
    let extents: Vec<String> = whole
        .offset
        .iter()
        .zip(variable.shape.iter())
        .zip(whole.shape.iter())
        .map(
            |((start, length), size)| {
                if length == size { "-".to_owned() } else { format!("{start},{length}") }
            },
        )
        .collect();
    sizes + &extents.join(":")
}

/// Groups variables by device, in the order of the first variable of each.
fn group_by_device(scope: &Scope, variables: &[Variable]) -> Vec<Vec<Variable>> {
    let mut devices: Vec<(String, Vec<Variable>)> = Vec::new();
    for variable in variables {
        let device = scope.read(|g, _| g.node(variable.handle.node).device.to_string()).unwrap_or_default();
        match devices.iter_mut().find(|(known, _)| *known == device) {
            Some((_, of_device)) => of_device.push(variable.clone()),
            None => devices.push((device, vec![variable.clone()])),
        }
    }
    devices.into_iter().map(|(_, variables)| variables).collect()
}
