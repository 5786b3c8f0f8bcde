//! The options of sessions and runs: merged, refused where a distributed session cannot do what they ask, and
//! named where they have no effect here.

use graph::Code;
use parking_lot::Mutex;
use prost::Message;
use proto::pb::run_options::TraceLevel;
use proto::{Status, pb};
use std::collections::BTreeSet;

/// The server's options under those that a session brings.
///
/// # Errors
/// `InvalidArgument` for threads of the session's own.
pub(crate) fn merge(
    default: &pb::ConfigProto,
    requested: &pb::ConfigProto,
) -> Result<pb::ConfigProto, Status> {
    let mut config = default.clone();
    config
        .merge(requested.encode_to_vec().as_slice())
        .map_err(|e| Status::invalid(format!("the session's ConfigProto cannot be merged: {e}")))?;
    if config.use_per_session_threads || !config.session_inter_op_thread_pool.is_empty() {
        return Err(Status::invalid("Distributed session does not support session thread pool options."));
    }
    Ok(config)
}

/// What a run asks the workers to record.
///
/// # Errors
/// `InvalidArgument` if the session does not give out partition graphs.
pub(crate) fn executor_options(
    run: &pb::RunOptions,
    session: &pb::ConfigProto,
) -> Result<pb::ExecutorOpts, Status> {
    let withholds = session.experimental.as_ref().is_some_and(|e| e.disable_output_partition_graphs);
    if run.output_partition_graphs && withholds {
        return Err(Status::invalid(
            "RunOptions.output_partition_graphs() is not supported when disable_output_partition_graphs is true.",
        ));
    }
    Ok(pb::ExecutorOpts {
        record_timeline: run.trace_level >= TraceLevel::SoftwareTrace as i32,
        record_partition_graphs: run.output_partition_graphs,
        report_tensor_allocations_upon_oom: run.report_tensor_allocations_upon_oom,
        ..Default::default()
    })
}

/// The group of collectives that a run belongs to; 0 for none.
pub(crate) fn collective_graph_key(run: &pb::RunOptions) -> i64 {
    run.experimental.as_ref().map_or(0, |e| e.collective_graph_key)
}

/// Options without effect here, each named in the log once.
#[derive(Debug, Default)]
pub(crate) struct Reported(Mutex<BTreeSet<&'static str>>);

impl Reported {
    pub(crate) fn session(&self, config: &pb::ConfigProto) {
        self.report("ConfigProto", &ignored_by_session(config));
    }

    pub(crate) fn run(&self, options: &pb::RunOptions) {
        self.report("RunOptions", &ignored_by_run(options));
    }

    fn report(&self, message: &str, names: &[&'static str]) {
        for name in names {
            if self.0.lock().insert(name) {
                tracing::warn!("{message}.{name} has no effect on this server");
            }
        }
    }
}

fn set(options: &[(bool, &'static str)]) -> Vec<&'static str> {
    options.iter().filter(|o| o.0).map(|o| o.1).collect()
}

fn ignored_by_session(config: &pb::ConfigProto) -> Vec<&'static str> {
    let graph = config.graph_options.clone().unwrap_or_default();
    let optimizer = graph.optimizer_options.unwrap_or_default();
    let rpc = config.rpc_options.clone().unwrap_or_default();
    let experimental = config.experimental.clone().unwrap_or_default();
    set(&[
        (config.inter_op_parallelism_threads != 0, "inter_op_parallelism_threads"),
        (config.intra_op_parallelism_threads != 0, "intra_op_parallelism_threads"),
        (graph.place_pruned_graph, "graph_options.place_pruned_graph"),
        (graph.enable_bfloat16_sendrecv, "graph_options.enable_bfloat16_sendrecv"),
        (graph.build_cost_model != 0, "graph_options.build_cost_model"),
        (graph.timeline_step != 0, "graph_options.timeline_step"),
        (optimizer.global_jit_level > 0, "graph_options.optimizer_options.global_jit_level"),
        (!rpc.compression_algorithm.is_empty(), "rpc_options.compression_algorithm"),
        (rpc.cache_rpc_response, "rpc_options.cache_rpc_response"),
        (rpc.disable_session_connection_sharing, "rpc_options.disable_session_connection_sharing"),
        (rpc.num_channels_per_target != 0, "rpc_options.num_channels_per_target"),
        (!experimental.executor_type.is_empty(), "experimental.executor_type"),
        (experimental.recv_buf_max_chunk != 0, "experimental.recv_buf_max_chunk"),
        (experimental.use_numa_affinity, "experimental.use_numa_affinity"),
        (experimental.enable_mlir_bridge, "experimental.enable_mlir_bridge"),
        (experimental.enable_mlir_graph_optimization, "experimental.enable_mlir_graph_optimization"),
        (experimental.use_tfrt, "experimental.use_tfrt"),
    ])
}

fn ignored_by_run(options: &pb::RunOptions) -> Vec<&'static str> {
    let experimental = options.experimental.unwrap_or_default();
    let watches = options.debug_options.as_ref().is_some_and(|d| !d.debug_tensor_watch_opts.is_empty());
    set(&[
        (options.inter_op_thread_pool != 0, "inter_op_thread_pool"),
        (watches, "debug_options"),
        (options.report_tensor_allocations_upon_oom, "report_tensor_allocations_upon_oom"),
        (experimental.use_run_handler_pool, "experimental.use_run_handler_pool"),
    ])
}

/// # Errors
/// `InvalidArgument` for a step in parts that takes part in collectives.
pub(crate) fn check_partial(options: &pb::RunOptions) -> Result<(), Status> {
    match collective_graph_key(options) {
        0 => Ok(()),
        _ => Err(Status::new(
            Code::InvalidArgument,
            "PartialRun does not support Collective ops. collective_graph_key must be kNoCollectiveGraphKey.",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sessions_options_win_and_lists_grow() -> Result<(), Status> {
        let default = pb::ConfigProto {
            operation_timeout_in_ms: 5,
            device_filters: vec!["/job:ps".into()],
            ..Default::default()
        };
        let requested = pb::ConfigProto {
            operation_timeout_in_ms: 7,
            device_filters: vec!["/job:worker".into()],
            ..Default::default()
        };
        let merged = merge(&default, &requested)?;
        assert_eq!((merged.operation_timeout_in_ms, merged.device_filters.len()), (7, 2));
        let threads = pb::ConfigProto { use_per_session_threads: true, ..Default::default() };
        assert_eq!(merge(&default, &threads).err().map(|s| s.code), Some(Code::InvalidArgument));
        Ok(())
    }

    #[test]
    fn what_has_no_effect_is_named_and_defaults_are_not() {
        assert!(ignored_by_session(&pb::ConfigProto::default()).is_empty());
        assert!(ignored_by_run(&pb::RunOptions::default()).is_empty());
        let config = pb::ConfigProto { inter_op_parallelism_threads: 3, ..Default::default() };
        assert_eq!(ignored_by_session(&config), ["inter_op_parallelism_threads"]);
        let reported = Reported::default();
        reported.session(&config);
        reported.session(&config);
        assert_eq!(reported.0.lock().len(), 1);
    }
}
