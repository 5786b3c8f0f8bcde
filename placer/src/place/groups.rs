//! Colocation groups: disjoint sets of nodes that must share a device, with the constraint of each set.

use super::kernels::{Signatures, TypesId};
use super::message;
use crate::device_set::DeviceSet;
use crate::error::{Error, Pin, Result};
use crate::spec::{SpecId, Specs, conflict};
use graph::{AttrList, AttrValue, Graph, NodeId, Topology};
use rustc_hash::FxHashMap;

pub(super) const NONE: u32 = u32::MAX;

/// Ops whose resource inputs may be on other devices, because the op only passes the handles into a function.
const FUNCTION_CALL_OPS: &[&str] = &[
    "PartitionedCall",
    "StatefulPartitionedCall",
    "If",
    "StatelessIf",
    "While",
    "StatelessWhile",
    "Case",
    "StatelessCase",
    "ReduceDataset",
];

/// The device constraint of a group of nodes. Only the constraint at the group's root is current.
#[derive(Clone, Copy, Debug)]
pub(super) struct Constraint {
    /// The specification requested by users; it refines `resource` and `device`.
    pub(super) requested: SpecId,
    /// The specification requested by users on nodes that create state; an edge cannot override it.
    pub(super) resource: SpecId,
    /// The device on which a member is placed; [`NONE`] if no member is placed.
    pub(super) device: u32,
    pub(super) types: TypesId,
    /// The node that requested `requested`; [`NONE`] if `requested` is empty.
    pub(super) requester: u32,
}

/// All colocation groups of one graph, as a union-find structure.
pub(super) struct Groups<'a> {
    pub(super) graph: &'a Graph,
    pub(super) devices: &'a DeviceSet,
    pub(super) specs: Specs,
    pub(super) signatures: Signatures<'a>,
    pub(super) constraints: Vec<Constraint>,
    /// For each node, the device specification that the node itself requests.
    pub(super) own: Vec<SpecId>,
    /// Set for nodes that a reference or resource edge joined to their group.
    pub(super) on_edge: Vec<bool>,
    parent: Vec<u32>,
    rank: Vec<u8>,
    soft: bool,
}

impl<'a> Groups<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        devices: &'a DeviceSet,
        specs: Specs,
        signatures: Signatures<'a>,
        soft: bool,
    ) -> Groups<'a> {
        let len = graph.len();
        Groups {
            graph,
            devices,
            specs,
            signatures,
            constraints: Vec::with_capacity(len),
            own: Vec::with_capacity(len),
            on_edge: vec![false; len],
            parent: (0..len as u32).collect(),
            rank: vec![0; len],
            soft,
        }
    }

    /// Returns the root of the node's group, and shortens the path to it.
    pub(super) fn root(&mut self, id: NodeId) -> usize {
        let mut at = id.index();
        while self.parent[at] as usize != at {
            let up = self.parent[self.parent[at] as usize];
            self.parent[at] = up;
            at = up as usize;
        }
        at
    }

    /// Joins the node with the producers of its reference and resource inputs.
    pub(super) fn join_edges(&mut self, id: NodeId, topology: &Topology) -> Result<()> {
        let node = self.graph.node(id);
        if FUNCTION_CALL_OPS.contains(&node.op.name()) {
            return Ok(());
        }
        let types = node.input_types()?;
        for producer in topology.producers(id) {
            if producer.is_control()
                || !types.get(producer.input as usize).is_some_and(|t| t.is_ref_or_resource())
            {
                continue;
            }
            self.on_edge[id.index()] = true;
            self.on_edge[producer.node.index()] = true;
            self.join_edge(producer.node, id)?;
        }
        Ok(())
    }

    /// Joins both ends of an edge. If the requested devices contradict each other, the source's request wins.
    fn join_edge(&mut self, from: NodeId, to: NodeId) -> Result<()> {
        let (source, target) = (self.root(from), self.root(to));
        if source == target {
            return Ok(());
        }
        let (s, t) = (self.constraints[source], self.constraints[target]);
        let incompatible = |kind, from_text: String, to_text: String| Error::IncompatibleEdge {
            kind,
            devices: Box::new([from_text, to_text]),
            source_node: (&*self.graph.node(from).name).into(),
            source_op: self.graph.node(from).op.name(),
            node: (&*self.graph.node(to).name).into(),
            op: self.graph.node(to).op.name(),
        };
        let device = match (s.device, t.device) {
            (a, b) if a == b || b == NONE => a,
            (NONE, b) => b,
            (a, b) => {
                let text = |d: u32| self.devices.get(d).text.to_string();
                return Err(incompatible(Pin::Assigned, text(a), text(b)));
            }
        };
        let Some(resource) = self.specs.merge(s.resource, t.resource, false) else {
            let text = |id| self.specs.get(id).to_string();
            return Err(incompatible(Pin::Resource, text(s.resource), text(t.resource)));
        };
        let (requested, requester) = match self.specs.merge(s.requested, t.requested, self.soft) {
            Some(both) => (both, if s.requester == NONE { t.requester } else { s.requester }),
            None => (s.requested, s.requester),
        };
        let types = self.merge_types(from, to, s.types, t.types)?;
        let constraint = self.refined(Constraint { requested, resource, device, types, requester });
        self.link(source, target, constraint);
        Ok(())
    }

    /// Joins nodes as their `_class` attributes require.
    pub(super) fn join_classes(&mut self) -> Result<()> {
        let graph = self.graph;
        // The first member of each class: indexed by the node that the class is named after, or by the class
        // name if there is no such node.
        let mut first = vec![NONE; graph.len()];
        let mut nameless: FxHashMap<String, u32> = FxHashMap::default();
        for (id, node) in graph.nodes() {
            let mut listed = false;
            if let Some(AttrValue::List(AttrList::Str(classes))) = node.attrs.get("_class") {
                for class in classes {
                    let Ok(class) = std::str::from_utf8(class) else { continue };
                    let Some(name) = class.strip_prefix("loc:@") else { continue };
                    listed = true;
                    let slot = match graph.find(name) {
                        Some(named) => &mut first[named.index()],
                        None => nameless.entry(name.to_owned()).or_insert(NONE),
                    };
                    if *slot == NONE {
                        *slot = id.index() as u32;
                    } else {
                        let with = NodeId::new(*slot as usize);
                        self.join_class(id, with)?;
                    }
                }
            }
            if !listed {
                let slot = &mut first[id.index()];
                if *slot == NONE {
                    *slot = id.index() as u32;
                } else {
                    let with = NodeId::new(*slot as usize);
                    self.join_class(id, with)?;
                }
            }
        }
        Ok(())
    }

    fn join_class(&mut self, id: NodeId, with: NodeId) -> Result<()> {
        match self.colocate(id, with) {
            // Under soft placement an impossible colocation is ignored.
            Err(_) if self.soft => Ok(()),
            other => other,
        }
    }

    fn colocate(&mut self, id: NodeId, with: NodeId) -> Result<()> {
        let (x, y) = (self.root(id), self.root(with));
        if x == y {
            return Ok(());
        }
        // The error message names the specification of the larger group first.
        let (first, second) = if self.rank[x] < self.rank[y] { (y, x) } else { (x, y) };
        let (a, b) = (self.constraints[first], self.constraints[second]);
        let error = |this: &Groups<'_>, reason: String| Error::Colocation {
            node: this.graph.node(id).name.to_string(),
            with: this.graph.node(with).name.to_string(),
            reason: format!(": {reason}"),
        };
        let device = match (a.device, b.device) {
            (d, e) if d == e || e == NONE => d,
            (NONE, e) => e,
            (d, e) => {
                let spec = |d: u32| self.devices.get(d).name.to_spec();
                return Err(error(self, conflict(&spec(d), &spec(e))));
            }
        };
        let merge = |this: &mut Groups<'_>, left, right, soft| {
            this.specs
                .merge(left, right, soft)
                .ok_or_else(|| error(this, conflict(this.specs.get(left), this.specs.get(right))))
        };
        let requested = merge(self, a.requested, b.requested, self.soft)?;
        let resource = merge(self, a.resource, b.resource, false)?;
        let types = self.merge_types(id, with, a.types, b.types)?;
        let requester = if a.requester == NONE { b.requester } else { a.requester };
        let constraint = self.refined(Constraint { requested, resource, device, types, requester });
        self.link(first, second, constraint);
        Ok(())
    }

    fn merge_types(&mut self, id: NodeId, with: NodeId, a: TypesId, b: TypesId) -> Result<TypesId> {
        if let Some(types) = self.signatures.merge(a, b) {
            return Ok(types);
        }
        let (x, y) = (self.root(id), self.root(with));
        Err(Error::Colocation {
            node: self.graph.node(id).name.to_string(),
            with: self.graph.node(with).name.to_string(),
            reason: format!(
                " because no device type supports both of those nodes and the other nodes colocated with them.{}{}",
                message::debug_info(self, x),
                message::debug_info(self, y)
            ),
        })
    }

    /// Returns the constraint with the fields of `resource` and of the assigned device restored in `requested`, because
    /// a soft merge may have dropped them.
    fn refined(&mut self, mut constraint: Constraint) -> Constraint {
        constraint.requested = self.specs.override_with(constraint.resource, constraint.requested);
        if constraint.device != NONE {
            constraint.requested = self.specs.intern(self.devices.get(constraint.device).name.to_spec());
        }
        constraint
    }

    /// Makes one root the parent of the other, by rank, and stores the joint constraint at the new root.
    fn link(&mut self, a: usize, b: usize, constraint: Constraint) {
        let (root, child) = if self.rank[a] < self.rank[b] { (b, a) } else { (a, b) };
        self.parent[child] = root as u32;
        if self.rank[root] == self.rank[child] {
            self.rank[root] += 1;
        }
        self.constraints[root] = constraint;
    }
}
