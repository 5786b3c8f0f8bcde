//! Nodes that must share a device: sets that join, each with what its members ask for.

use super::kernels::{Signatures, TypesId};
use super::message;
use crate::device_set::DeviceSet;
use crate::error::{Error, Pin, Result};
use crate::spec::{SpecId, Specs, conflict};
use graph::{AttrList, AttrValue, Graph, NodeId, Topology};
use rustc_hash::FxHashMap;

pub(super) const NONE: u32 = u32::MAX;

/// Ops whose resource inputs may be on other devices than the op: they hand them on into functions.
const SPREAD_OVER_DEVICES: &[&str] = &[
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

/// What one set of nodes asks for. Only a root's is current.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// What users asked for; refines the other two.
    pub(super) requested: SpecId,
    /// What users asked for on nodes that make state: it is not overridden along edges.
    pub(super) resource: SpecId,
    /// The device where some member is; [`NONE`] if none is placed.
    pub(super) device: u32,
    pub(super) types: TypesId,
    /// The node that asked for `requested`; [`NONE`] if that is empty.
    pub(super) requester: u32,
}

/// All sets of one graph.
pub(super) struct Groups<'a> {
    pub(super) graph: &'a Graph,
    pub(super) devices: &'a DeviceSet,
    pub(super) specs: Specs,
    pub(super) signatures: Signatures<'a>,
    pub(super) wishes: Vec<Wish>,
    /// The specification that each node itself asks for.
    pub(super) own: Vec<SpecId>,
    /// Members tied by an edge, for which state decides.
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
            wishes: Vec::with_capacity(len),
            own: Vec::with_capacity(len),
            on_edge: vec![false; len],
            parent: (0..len as u32).collect(),
            rank: vec![0; len],
            soft,
        }
    }

    pub(super) fn root(&mut self, id: NodeId) -> usize {
        let mut at = id.index();
        while self.parent[at] as usize != at {
            let up = self.parent[self.parent[at] as usize];
            self.parent[at] = up;
            at = up as usize;
        }
        at
    }

    /// Joins nodes along edges of references and resources.
    pub(super) fn join_edges(&mut self, id: NodeId, topology: &Topology) -> Result<()> {
        let node = self.graph.node(id);
        if SPREAD_OVER_DEVICES.contains(&node.op.name()) {
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

    /// Joins both ends of an edge. What the destination's side asked for gives way to the source's.
    fn join_edge(&mut self, from: NodeId, to: NodeId) -> Result<()> {
        let (source, target) = (self.root(from), self.root(to));
        if source == target {
            return Ok(());
        }
        let (s, t) = (self.wishes[source], self.wishes[target]);
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
        let wish = self.refined(Wish { requested, resource, device, types, requester });
        self.link(source, target, wish);
        Ok(())
    }

    /// Joins nodes as their `_class` attributes ask.
    pub(super) fn join_classes(&mut self) -> Result<()> {
        let graph = self.graph;
        // The first node met of each class, by the node whose name the class has, or by name if there is none.
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
            // A wish that cannot be met is no error under soft placement.
            Err(_) if self.soft => Ok(()),
            other => other,
        }
    }

    fn colocate(&mut self, id: NodeId, with: NodeId) -> Result<()> {
        let (x, y) = (self.root(id), self.root(with));
        if x == y {
            return Ok(());
        }
        // Conflicts name the larger set's wish first.
        let (first, second) = if self.rank[x] < self.rank[y] { (y, x) } else { (x, y) };
        let (a, b) = (self.wishes[first], self.wishes[second]);
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
        let wish = self.refined(Wish { requested, resource, device, types, requester });
        self.link(first, second, wish);
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

    /// The wish with `requested` refining the others again: merging may have given up what they fix.
    fn refined(&mut self, mut wish: Wish) -> Wish {
        wish.requested = self.specs.override_with(wish.resource, wish.requested);
        if wish.device != NONE {
            wish.requested = self.specs.intern(self.devices.get(wish.device).name.to_spec());
        }
        wish
    }

    fn link(&mut self, a: usize, b: usize, wish: Wish) {
        let (root, child) = if self.rank[a] < self.rank[b] { (b, a) } else { (a, b) };
        self.parent[child] = root as u32;
        if self.rank[root] == self.rank[child] {
            self.rank[root] += 1;
        }
        self.wishes[root] = wish;
    }
}
