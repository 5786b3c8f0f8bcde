//! Registered graphs: a task's part of a graph, split by device and compiled.

use crate::session::Session;
use crate::transport::Road;
use executor::{Executor, Pool, fuse};
use graph::{DeviceName, Graph, Role};
use placer::{DeviceSet, PartitionOptions, Split, partition, placed_devices};
use proto::convert::{DefaultAttrs, graph_to_proto};
use proto::{Rewrite, Rewrites, Status, pb};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// What a graph handle stands for.
#[derive(Debug)]
pub(crate) struct RegisteredGraph {
    pub(crate) parts: Vec<Part>,
    /// The ways to the tasks that it sends to, each once.
    pub(crate) receivers: Arc<[Arc<Road>]>,
}

/// One device's part.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) device: DeviceName,
    pub(crate) executor: Arc<Executor>,
    graph: Graph,
}

impl RegisteredGraph {
    /// Compiles a graph whose nodes carry full names of the session's devices, after those rewrites that look at one
    /// device and that the session's options allow.
    ///
    /// # Errors
    /// A node without such a name, or without a kernel; each names the node.
    pub(crate) fn compile(
        graph: &Graph,
        session: &Session,
        pool: &Arc<Pool>,
        rewrites: &Rewrites,
    ) -> Result<RegisteredGraph, Status> {
        let named = session.devices.attributes().into_iter().map(|d| (d.name, d.incarnation));
        let devices = DeviceSet::new(named);
        let placement = placed_devices(graph, &devices).map_err(placer_failure)?;
        let options = PartitionOptions { devices: &devices, split: Split::Device, names: &session.names };
        let parts = partition(graph, &placement, &options).map_err(placer_failure)?;
        let fuses = rewrites.allow(Rewrite::Fusion) && graph.len() >= rewrites.least_nodes().unwrap_or(0);
        let compile = |part: placer::Partition| {
            let device = part.device.ok_or_else(|| Status::invalid("a part without a device"))?;
            let on = session.devices.find(&device)?.clone();
            let graph = match fuses {
                true => fuse(part.graph, &*on).map_err(|e| crate::failure(&e))?,
                false => part.graph,
            };
            let executor = Executor::new(&graph, on, pool.clone(), &session.kernels);
            Ok(Part { device, executor: Arc::new(executor.map_err(|e| crate::failure(&e))?), graph })
        };
        let parts = parts.into_iter().map(compile).collect::<Result<_, Status>>()?;
        Ok(RegisteredGraph { parts, receivers: receivers(graph, session) })
    }

    /// The graphs that run, one a device, for whoever asks what became of his.
    pub(crate) fn partition_graphs(&self) -> Result<Vec<pb::GraphDef>, Status> {
        let graphs = self.parts.iter().map(|p| graph_to_proto(&p.graph, DefaultAttrs::Keep));
        Ok(graphs.collect::<Result<_, _>>()?)
    }
}

fn receivers(graph: &Graph, session: &Session) -> Arc<[Arc<Road>]> {
    let sends = graph.nodes().filter(|(_, node)| node.op.role() == Role::Send);
    let devices: FxHashSet<String> = sends.filter_map(|(_, n)| n.attr("recv_device").ok()).collect();
    let elsewhere = devices.into_iter().filter(|device| !device.starts_with(&*session.own_prefix));
    let mut roads: Vec<Arc<Road>> =
        elsewhere.filter_map(|device| session.peers.road_to(&device.into())).collect();
    roads.sort_unstable_by_key(Arc::as_ptr);
    roads.dedup_by(|a, b| Arc::ptr_eq(a, b));
    roads.into()
}

fn placer_failure(error: placer::Error) -> Status {
    Status::new(error.code(), error.to_string())
}
