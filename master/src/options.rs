//! The options of sessions and runs: a session's options are merged with the server's defaults, options that
//! a distributed session cannot support are refused, and options without effect are logged.

use graph::Code;
use parking_lot::Mutex;
use prost::Message;
use proto::fields::{Options, SetField, set_fields};
use proto::pb::rewriter_config::Toggle;
use proto::pb::run_options::TraceLevel;
use proto::{Status, pb};
use std::collections::BTreeSet;

/// Returns the server's default options overridden by those of a session.
///
/// # Errors
/// `InvalidArgument` if the options request thread pools for the session.
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

/// Returns the executor options of a run: the timeline, partition graphs and allocation reports that it
/// requests from the workers.
///
/// # Errors
/// `InvalidArgument` if the run requests partition graphs and the session's options disable them.
pub(crate) fn executor_options(
    run: &pb::RunOptions,
    session: &pb::ConfigProto,
) -> Result<pb::ExecutorOpts, Status> {
    let withholds_graphs = session.experimental.as_ref().is_some_and(|e| e.disable_output_partition_graphs);
    if run.output_partition_graphs && withholds_graphs {
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

/// Returns the tensors that a run watches; `None` if it watches none.
pub(crate) fn watches(run: &pb::RunOptions) -> Option<&pb::DebugOptions> {
    run.debug_options.as_ref().filter(|options| !options.debug_tensor_watch_opts.is_empty())
}

/// Returns whether the session requests the costs of its step with this number, counted from 1: every
/// `build_cost_model` steps, after the first `build_cost_model_after`.
pub(crate) fn requests_costs(session: &pb::ConfigProto, step: u64) -> bool {
    let Some(options) = &session.graph_options else { return false };
    let every = u64::try_from(options.build_cost_model).unwrap_or(0);
    let after = u64::try_from(options.build_cost_model_after).unwrap_or(0);
    every > 0 && step > after && (step - after).is_multiple_of(every)
}

/// Returns the key of the collective group that a run belongs to, or 0 if the run belongs to no group.
pub(crate) fn collective_graph_key(run: &pb::RunOptions) -> i64 {
    run.experimental.as_ref().map_or(0, |e| e.collective_graph_key)
}

/// The paths of `ConfigProto` fields that have an effect or are refused. A path covers the field and all
/// fields nested in it. All other fields are logged when they are set.
const EFFECTIVE_SESSION_FIELDS: &[&str] = &[
    "allow_soft_placement",
    "cluster_def",
    "device_filters",
    "experimental.disable_functional_ops_lowering",
    "experimental.disable_optimize_for_static_graph",
    "experimental.disable_output_partition_graphs",
    "experimental.session_metadata",
    "experimental.share_cluster_devices_in_session",
    "experimental.share_session_state_in_clusterspec_propagation",
    "graph_options.build_cost_model",
    "graph_options.build_cost_model_after",
    "graph_options.optimizer_options.max_folded_constant_in_bytes",
    "graph_options.optimizer_options.opt_level",
    "graph_options.rewrite_options.arithmetic_optimization",
    "graph_options.rewrite_options.common_subgraph_elimination",
    "graph_options.rewrite_options.constant_folding",
    "graph_options.rewrite_options.dependency_optimization",
    "graph_options.rewrite_options.disable_meta_optimizer",
    "graph_options.rewrite_options.disable_model_pruning",
    "graph_options.rewrite_options.fail_on_optimizer_errors",
    "graph_options.rewrite_options.min_graph_nodes",
    "graph_options.rewrite_options.optimizers",
    "graph_options.rewrite_options.remapping",
    "graph_options.rewrite_options.scoped_allocator_optimization",
    "graph_options.rewrite_options.shape_optimization",
    "isolate_session_state",
    "log_device_placement",
    "operation_timeout_in_ms",
    "session_inter_op_thread_pool",
    "share_cluster_devices_in_session",
    "use_per_session_threads",
];

/// The paths of `RunOptions` fields that have an effect. A path covers the field and all fields nested in it.
const EFFECTIVE_RUN_FIELDS: &[&str] = &[
    "debug_options.debug_tensor_watch_opts",
    "experimental.collective_graph_key",
    "output_partition_graphs",
    "timeout_in_ms",
    "trace_level",
];

/// The paths of the options without effect that have been logged, so that each path is logged once.
#[derive(Debug, Default)]
pub(crate) struct IgnoredOptions(Mutex<BTreeSet<String>>);

impl IgnoredOptions {
    /// Logs the options of a session that have no effect.
    pub(crate) fn session(&self, config: &pb::ConfigProto) {
        self.report("ConfigProto", ignored(config, EFFECTIVE_SESSION_FIELDS));
    }

    /// Logs the options of a run that have no effect.
    pub(crate) fn run(&self, options: &pb::RunOptions) {
        self.report("RunOptions", ignored(options, EFFECTIVE_RUN_FIELDS));
    }

    /// Logs the paths that have not been logged before.
    fn report(&self, message: &str, paths: impl Iterator<Item = String>) {
        for path in paths {
            let name = format!("{message}.{path}");
            if !self.0.lock().contains(&name) {
                tracing::warn!("{name} has no effect on this server");
                self.0.lock().insert(name);
            }
        }
    }
}

/// Returns the paths of the fields of `options` that are set but have no effect.
fn ignored<T: Options>(options: &T, effective: &'static [&'static str]) -> impl Iterator<Item = String> {
    let is_effective = move |path: &str| {
        effective.iter().any(|known| {
            path.strip_prefix(known).is_some_and(|below| below.is_empty() || below.starts_with('.'))
        })
    };
    let set = set_fields(options).into_iter();
    set.filter(move |field| !is_effective(&field.path) && !is_disabled_rewrite(field)).map(|field| field.path)
}

/// Returns whether a field without effect only disables a rewrite. Such a field is not logged, because this
/// server does not make that rewrite.
fn is_disabled_rewrite(field: &SetField) -> bool {
    field.type_name == "tensorflow.RewriterConfig.Toggle" && field.value == Toggle::Off as u64
}

/// Checks the options of a partial run.
///
/// # Errors
/// `InvalidArgument` for a partial run in a collective group.
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
    use prost::encoding::{WireType, encode_key, encode_varint};
    use serde_json::Value;

    type Test = Result<(), Box<dyn std::error::Error>>;

    #[test]
    fn session_options_override_defaults_and_extend_lists() -> Result<(), Status> {
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

    /// Returns every field of a message and of the messages within it: its path, and an encoded message with
    /// only that field set to a value that is not its default.
    fn every_field(message: &str, facts: &Value) -> Vec<(String, Vec<u8>)> {
        let mut every = Vec::new();
        for field in facts["messages"][message]["fields"].as_array().into_iter().flatten() {
            let text = |key: &str| field[key].as_str().unwrap_or_default();
            let number = field["number"].as_u64().unwrap_or_default() as u32;
            let encoded = |wire: WireType, value: &[u8]| {
                let mut bytes = Vec::new();
                encode_key(number, wire, &mut bytes);
                if wire == WireType::LengthDelimited {
                    encode_varint(value.len() as u64, &mut bytes);
                }
                [bytes.as_slice(), value].concat()
            };
            let own = match text("type") {
                "message" if text("label") == "optional" => {
                    let inner = every_field(text("type_name"), facts).into_iter();
                    every.extend(inner.map(|(path, value)| {
                        (format!("{}.{path}", text("name")), encoded(WireType::LengthDelimited, &value))
                    }));
                    continue;
                }
                "message" => encoded(WireType::LengthDelimited, b""),
                "string" => encoded(WireType::LengthDelimited, b"x"),
                "double" => encoded(WireType::SixtyFourBit, &1f64.to_le_bytes()),
                "float" => encoded(WireType::ThirtyTwoBit, &1f32.to_le_bytes()),
                _ => encoded(WireType::Varint, &[1]),
            };
            every.push((text("name").to_owned(), own));
        }
        every
    }

    /// Checks that every field of TensorFlow's message has an effect or is logged, and that every path in
    /// `effective` is a field of the message.
    fn check_every_field<T: Options + Default>(effective: &'static [&'static str]) -> Test {
        let facts = serde_json::from_str(include_str!("../../proto/tests/it/descriptors.json"))?;
        let every = every_field(T::NAME, &facts);
        assert!(every.len() > 10, "{every:?}");
        let is_of = |path: &str, known: &str| {
            path == known || path.strip_prefix(known).is_some_and(|below| below.starts_with('.'))
        };
        for (path, bytes) in &every {
            let options = T::decode(bytes.as_slice()).map_err(|e| format!("{path}: {e}"))?;
            let reported: Vec<String> = ignored(&options, effective).collect();
            match effective.iter().any(|known| is_of(path, known)) {
                true => assert!(reported.is_empty(), "{path} has its effect and is reported"),
                false => assert_eq!(reported, [path.as_str()]),
            }
        }
        for known in effective {
            assert!(every.iter().any(|(path, _)| is_of(path, known)), "{known} is no field");
        }
        Ok(())
    }

    /// The fields of `RunMetadata` that a run can request.
    const RETURNED: &[&str] = &["cost_graph", "partition_graphs", "step_stats"];
    /// The fields of `RunMetadata` that are always empty: TensorFlow fills them only for a program's own process: with
    /// the functions that the program calls without a session, and with the session's own options.
    const NEVER_RETURNED: &[&str] = &["function_graphs", "session_metadata"];

    #[test]
    fn every_field_of_run_metadata_is_returned_or_listed() -> Test {
        let facts: Value = serde_json::from_str(include_str!("../../proto/tests/it/descriptors.json"))?;
        let fields = facts["messages"]["tensorflow.RunMetadata"]["fields"].as_array().ok_or("no fields")?;
        let mut names: Vec<&str> = fields.iter().filter_map(|field| field["name"].as_str()).collect();
        names.sort_unstable();
        let mut listed = [RETURNED, NEVER_RETURNED].concat();
        listed.sort_unstable();
        assert_eq!(names, listed);
        Ok(())
    }

    #[test]
    fn costs_are_requested_for_every_nth_step_after_the_first() {
        let graph_options =
            pb::GraphOptions { build_cost_model: 2, build_cost_model_after: 1, ..Default::default() };
        let config = pb::ConfigProto { graph_options: Some(graph_options), ..Default::default() };
        let requested: Vec<u64> = (1..8).filter(|&step| requests_costs(&config, step)).collect();
        assert_eq!(requested, [3, 5, 7]);
        assert!(!requests_costs(&pb::ConfigProto::default(), 1));
    }

    #[test]
    fn every_field_has_an_effect_or_is_logged() -> Test {
        check_every_field::<pb::ConfigProto>(EFFECTIVE_SESSION_FIELDS)?;
        check_every_field::<pb::RunOptions>(EFFECTIVE_RUN_FIELDS)
    }

    #[test]
    fn ineffective_options_are_logged_once_and_defaults_never() {
        assert_eq!(ignored(&pb::ConfigProto::default(), EFFECTIVE_SESSION_FIELDS).count(), 0);
        assert_eq!(ignored(&pb::RunOptions::default(), EFFECTIVE_RUN_FIELDS).count(), 0);
        let mut config = pb::ConfigProto { inter_op_parallelism_threads: 3, ..Default::default() };
        config.device_count.insert("GPU".into(), 0);
        let rewriter = pb::RewriterConfig {
            arithmetic_optimization: Toggle::Off as i32,
            layout_optimizer: Toggle::On as i32,
            ..Default::default()
        };
        config.graph_options =
            Some(pb::GraphOptions { rewrite_options: Some(rewriter), ..Default::default() });
        let expected = BTreeSet::from(
            [
                "device_count",
                "inter_op_parallelism_threads",
                "graph_options.rewrite_options.layout_optimizer",
            ]
            .map(|name| format!("ConfigProto.{name}")),
        );
        let reported = IgnoredOptions::default();
        reported.session(&config);
        reported.session(&config);
        assert_eq!(*reported.0.lock(), expected);
    }
}
