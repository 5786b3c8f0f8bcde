//! Registered graphs: a task's part of a graph, partitioned by device and compiled.

use crate::session::Session;
use crate::transport::Route;
use crate::watches::watch;
use device::Pool;
use executor::{Executor, fuse};
use graph::passes::{connect_reductions, number_instances};
use graph::{BucketPlace, DeviceName, Graph, NodeId, RecvOrigin, ReductionPlace, Role};
use parking_lot::Mutex;
use placer::{DeviceSet, PartitionOptions, Split, partition, placed_devices};
use proto::convert::{DefaultAttrs, graph_to_proto};
use proto::{Rewrite, Rewrites, Status, pb};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// A graph that a master has registered, compiled into one executor per device.
#[derive(Debug)]
pub(crate) struct RegisteredGraph {
    pub(crate) partitions: Vec<GraphPartition>,
    /// The routes to the tasks that the graph sends tensors to, each once.
    pub(crate) receivers: Arc<[Arc<Route>]>,
    /// This graph compiled for partial runs; `None` until the first partial run.
    partial_run_graph: Mutex<Option<Arc<RegisteredGraph>>>,
    /// The key under which masters agree on the ids of steps with collectives; 0 for a graph without them.
    pub(crate) collective_graph_key: i64,
}

/// One device's partition of a graph.
#[derive(Debug)]
pub(crate) struct GraphPartition {
    pub(crate) device: DeviceName,
    pub(crate) executor: Arc<Executor>,
    pub(crate) graph: Graph,
}

impl GraphPartition {
    fn compile(
        device: DeviceName,
        graph: Graph,
        session: &Session,
        pool: &Arc<Pool>,
    ) -> Result<GraphPartition, Status> {
        let on = session.devices.find(&device)?.clone();
        let ordered = connect_reductions(&graph);
        let ordered = ordered.as_ref().unwrap_or(&graph);
        let executor =
            Executor::with_devices(ordered, on, session.devices.all(), pool.clone(), &session.kernels);
        Ok(GraphPartition { device, executor: Arc::new(executor.map_err(|e| crate::failure(&e))?), graph })
    }

    /// Compiles the partition for partial runs, in which inputs may be fed after the run has begun: collectives
    /// do not wait for each other in buckets or in an order. A partition without feeds, buckets and orders keeps its
    /// executor.
    fn for_partial_run(&self, session: &Session, pool: &Arc<Pool>) -> Result<GraphPartition, Status> {
        let (device, mut graph) = (self.device.clone(), self.graph.clone());
        let fed = self.graph.nodes().filter_map(|(id, node)| Some((id, RecvOrigin::of(node)?)));
        let fed: Vec<(NodeId, RecvOrigin<'_>)> = fed.filter(|(_, origin)| origin.is_fed).collect();
        let ids: Vec<NodeId> = graph.ids().collect();
        let mut had_place = false;
        for id in ids {
            let node = graph.node_mut(id);
            had_place |= BucketPlace::remove(node) | ReductionPlace::remove(node);
        }
        if fed.is_empty() && !had_place {
            return Ok(GraphPartition { device, executor: self.executor.clone(), graph });
        }
        for (id, origin) in fed {
            RecvOrigin { is_fed: false, ..origin }.note(graph.node_mut(id));
        }
        GraphPartition::compile(device, graph, session, pool)
    }
}

impl RegisteredGraph {
    /// Compiles a graph whose nodes have full names of the session's devices. Rewrites that concern a single device are
    /// applied first, as far as the session's options allow them; they are not applied to watched graphs.
    ///
    /// # Errors
    /// For a node without a full device name or without a kernel; the message names the node.
    pub(crate) fn compile(
        graph: &Graph,
        session: &Session,
        pool: &Arc<Pool>,
        rewrites: &Rewrites,
        watches: Option<&pb::DebugOptions>,
    ) -> Result<RegisteredGraph, Status> {
        let named = session.devices.attributes().into_iter().map(|d| (d.name, d.incarnation));
        let devices = DeviceSet::new(named);
        let placement = placed_devices(graph, &devices).map_err(placer_failure)?;
        let options = PartitionOptions { devices: &devices, split: Split::Device, names: &session.names };
        let parts = partition(graph, &placement, &options).map_err(placer_failure)?;
        let fuses = watches.is_none()
            && rewrites.allow(Rewrite::Fusion)
            && graph.len() >= rewrites.least_nodes().unwrap_or(0);
        let compile = |part: placer::Partition| {
            let device = part.device.ok_or_else(|| Status::invalid("a part without a device"))?;
            let numbered = number_instances(part.graph);
            let graph = match fuses {
                true => {
                    let on = session.devices.find(&device)?;
                    fuse(numbered, on).map_err(|e| crate::failure(&e))?
                }
                false => numbered,
            };
            let graph = match watches {
                Some(options) => watch(graph, session.devices.find(&device)?, options)?,
                None => graph,
            };
            GraphPartition::compile(device, graph, session, pool)
        };
        let partitions = parts.into_iter().map(compile).collect::<Result<_, Status>>()?;
        Ok(RegisteredGraph {
            partitions,
            receivers: receivers(graph, session),
            partial_run_graph: Mutex::default(),
            collective_graph_key: 0,
        })
    }

    /// Returns the graph compiled for partial runs; the first call compiles it.
    ///
    /// # Errors
    /// Those of [`RegisteredGraph::compile`].
    pub(crate) fn for_partial_run(
        &self,
        session: &Session,
        pool: &Arc<Pool>,
    ) -> Result<Arc<RegisteredGraph>, Status> {
        let mut cached = self.partial_run_graph.lock();
        if let Some(cached) = &*cached {
            return Ok(cached.clone());
        }
        let parts = self.partitions.iter().map(|part| part.for_partial_run(session, pool));
        let compiled = Arc::new(RegisteredGraph {
            partitions: parts.collect::<Result<_, Status>>()?,
            receivers: self.receivers.clone(),
            partial_run_graph: Mutex::default(),
            collective_graph_key: self.collective_graph_key,
        });
        *cached = Some(compiled.clone());
        Ok(compiled)
    }

    /// Returns the graph of each device after all rewrites, for clients that request
    /// `RunOptions.output_partition_graphs`.
    pub(crate) fn partition_graphs(&self) -> Result<Vec<pb::GraphDef>, Status> {
        let graphs = self.partitions.iter().map(|p| graph_to_proto(&p.graph, DefaultAttrs::Keep));
        Ok(graphs.collect::<Result<_, _>>()?)
    }
}

/// Returns the routes to the other tasks that a graph has Send nodes for.
fn receivers(graph: &Graph, session: &Session) -> Arc<[Arc<Route>]> {
    let sends = graph.nodes().filter(|(_, node)| node.op.role() == Role::Send);
    let devices: FxHashSet<String> = sends.filter_map(|(_, n)| n.attr("recv_device").ok()).collect();
    let elsewhere = devices.into_iter().filter(|device| !device.starts_with(&*session.own_prefix));
    let mut link_table: Vec<Arc<Route>> =
        elsewhere.filter_map(|device| session.peers.route_to(&device.into())).collect();
    link_table.sort_unstable_by_key(Arc::as_ptr);
    link_table.dedup_by(|a, b| Arc::ptr_eq(a, b));
    link_table.into()
}

fn placer_failure(error: placer::Error) -> Status {
    Status::new(error.code(), error.to_string())
}
