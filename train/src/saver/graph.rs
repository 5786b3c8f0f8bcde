//! The nodes of a saver: for each task, what sets aside, writes and restores the variables there.

use crate::initializer::strings;
use crate::variables::Variable;
use graph::{DType, NodeId, Output, PartialShape, Scope};

#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) shards: Vec<Shard>,
    pub(super) snapshot: Vec<NodeId>,
    /// Writes every shard, then joins them at `destination`.
    pub(super) write: NodeId,
    /// Does nothing, where the checkpoint is joined.
    pub(super) confirm: NodeId,
    /// The checkpoint to write and to read, scalars of `string` to be fed.
    pub(super) destination: Output,
    pub(super) source: Output,
    /// Whether steps go before what writes, a scalar of `bool` to be fed.
    pub(super) behind_steps: Output,
}

/// The variables of one task.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) variables: Vec<String>,
    /// Where the shard is written, a scalar of `string` to be fed.
    pub(super) prefix: Output,
    pub(super) restore: NodeId,
}

impl Nodes {
    pub(super) fn new(scope: &Scope, variables: &[Variable]) -> Nodes {
        let scope = scope.name_scope("save");
        let path = |name: &str| scope.placeholder(name, DType::String, PartialShape::scalar());
        let (destination, source) = (path("destination"), path("source"));
        let behind_steps = scope.placeholder("behind_steps", DType::Bool, PartialShape::scalar());
        let (mut shards, mut snapshot, mut writes) = (Vec::new(), Vec::new(), Vec::new());
        for (i, variables) in by_device(&scope, variables).into_iter().enumerate() {
            let prefix = path(&format!("shard_{i}"));
            let built = Built::new(&scope, &variables, prefix, source, behind_steps);
            snapshot.push(built.snapshot);
            writes.push(built.write);
            let variables = variables.into_iter().map(|v| v.name).collect();
            shards.push(Shard { variables, prefix, restore: built.restore });
        }
        let prefixes: Vec<Output> = shards.iter().map(|shard| shard.prefix).collect();
        let at = variables.first().map_or_else(|| scope.clone(), |first| scope.host_of(first.handle.node));
        let joins = at.control(&writes);
        let write = joins.merge_checkpoints(joins.pack(&prefixes, 0), destination);
        Nodes { shards, snapshot, write, confirm: at.no_op(), destination, source, behind_steps }
    }
}

struct Built {
    snapshot: NodeId,
    write: NodeId,
    restore: NodeId,
}

impl Built {
    /// For the variables of one device text, one or more.
    fn new(
        scope: &Scope,
        variables: &[Variable],
        prefix: Output,
        source: Output,
        behind_steps: Output,
    ) -> Built {
        // What is kept stays in the process that has the variables, each of which may be on a device of its own.
        let first = variables[0].handle.node;
        let (beside, host) = (scope.colocate_with(first), scope.host_of(first));
        let types: Vec<DType> = variables.iter().map(|v| v.dtype).collect();
        // Each saver of a graph has a snapshot of its own, named as what no other has.
        let shared_name = scope.read(|g, _| g.node(prefix.node).name.to_string()).unwrap_or_default();
        let aside = |v: &Variable| {
            let at = scope.colocate_with(v.handle.node);
            at.op("SetAsideVariable").input(v.handle).output()
        };
        let asides: Vec<Output> = variables.iter().map(aside).collect();
        let snapshot =
            beside.op("KeepSnapshot").input(asides).attr("shared_name", shared_name.clone()).node();
        let names = strings(&host, variables.iter().map(|v| saved_name(v).to_owned()));
        let slices = strings(&host, variables.iter().map(slice));
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
        Built { snapshot, write, restore: host.group(&assigns) }
    }
}

/// Parts of a variable are saved as slices under the name of the whole.
fn saved_name(variable: &Variable) -> &str {
    variable.part_of.as_ref().map_or(&variable.name, |whole| &whole.name)
}

/// What `SaveV2` and `RestoreV2` are told of which part of a whole a variable is; nothing of a whole.
fn slice(variable: &Variable) -> String {
    let Some(whole) = &variable.part_of else { return String::new() };
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

/// The variables of each device, in the order of their first ones.
fn by_device(scope: &Scope, variables: &[Variable]) -> Vec<Vec<Variable>> {
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
