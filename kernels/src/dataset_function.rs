//! Kernels of datasets that apply functions to elements.

use crate::objects::dataset::argument::{
    boolean, captured, count, dataset, dataset_kernel, function, integer, spec, tensors,
};
use crate::objects::dataset::function::{ElementFunction, GraphFunction};
use crate::objects::dataset::index_map::index_flat_map;
use crate::objects::dataset::interleave::{InterleavePrefetch, Interleaving, interleave};
use crate::objects::dataset::parallel_map::{Parallelism, map_and_batch, parallel_filter, parallel_map};
use crate::objects::dataset::speed::{Branches, choose_fastest_branch};
use crate::objects::dataset::{grouped, map};
use crate::parsing::example::dataset::parsed;
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("MapDataset", &[], mapped),
    KernelDef::of("ExperimentalMapDataset", &[], mapped),
    KernelDef::of("ParallelMapDataset", &[], |init| {
        let sloppy = init.attr::<bool>("sloppy")?;
        mapped_in_parallel(init, sloppy.then_some(false))
    }),
    KernelDef::of("ParallelMapDatasetV2", &[], |init| {
        let deterministic = deterministic(init)?;
        mapped_in_parallel(init, deterministic)
    }),
    KernelDef::of("ParseExampleDataset", &[], examples_parsed),
    KernelDef::of("ExperimentalParseExampleDataset", &[], examples_parsed),
    KernelDef::of("ParseExampleDatasetV2", &[], |init| {
        let deterministic = deterministic(init)?;
        parsed(init, deterministic)
    }),
    KernelDef::of("FlatMapDataset", &[], |init| {
        let (f, spec) = (function(init, "f")?, spec(init)?);
        dataset_kernel(init, move |ctx| {
            map::flat_map(dataset(ctx, 0)?, captured(ctx, &f, 1..ctx.num_inputs())?, spec.clone())
        })
    }),
    KernelDef::of("InterleaveDataset", &[], |init| interleaved(init, |_, _| None)),
    KernelDef::of("ParallelInterleaveDataset", &[], |init| interleaved(init, legacy)),
    KernelDef::of("ExperimentalParallelInterleaveDataset", &[], |init| interleaved(init, legacy)),
    KernelDef::of("LegacyParallelInterleaveDatasetV2", &[], |init| {
        interleaved(init, |numbers, _| {
            Some(InterleavePrefetch { datasets: -1, elements: numbers.first().copied().unwrap_or(-1) })
        })
    }),
    KernelDef::of("ParallelInterleaveDatasetV2", &[], |init| interleaved(init, calls_only)),
    KernelDef::of("ParallelInterleaveDatasetV3", &[], |init| interleaved(init, calls_only)),
    KernelDef::of("ParallelInterleaveDatasetV4", &[], |init| {
        interleaved(init, |numbers, _| match numbers {
            [elements, _, datasets] => Some(InterleavePrefetch { datasets: *datasets, elements: *elements }),
            _ => None,
        })
    }),
    KernelDef::of("FilterDataset", &[], |init| {
        let predicate = function(init, "predicate")?;
        dataset_kernel(init, move |ctx| {
            map::filter(dataset(ctx, 0)?, captured(ctx, &predicate, 1..ctx.num_inputs())?)
        })
    }),
    KernelDef::of("ParallelFilterDataset", &[], |init| {
        let (predicate, deterministic) = (function(init, "predicate")?, deterministic(init)?);
        dataset_kernel(init, move |ctx| {
            let last = ctx.num_inputs() - 1;
            let how = Parallelism { calls: integer(ctx, last, "num_parallel_calls")?, deterministic };
            parallel_filter(dataset(ctx, 0)?, captured(ctx, &predicate, 1..last)?, how)
        })
    }),
    KernelDef::of("FilterByLastComponentDataset", &[], |init| {
        let spec = spec(init)?;
        dataset_kernel(init, move |ctx| map::filter_by_last_component(dataset(ctx, 0)?, spec.clone()))
    }),
    KernelDef::of("MapAndBatchDataset", &[], mapped_and_batched),
    KernelDef::of("ExperimentalMapAndBatchDataset", &[], mapped_and_batched),
    KernelDef::of("ScanDataset", &[], scanned),
    KernelDef::of("ExperimentalScanDataset", &[], scanned),
    KernelDef::of("TakeWhileDataset", &[], taken_while),
    KernelDef::of("ExperimentalTakeWhileDataset", &[], taken_while),
    KernelDef::of("GroupByWindowDataset", &[], grouped_by_window),
    KernelDef::of("ExperimentalGroupByWindowDataset", &[], grouped_by_window),
    KernelDef::of("GroupByReducerDataset", &[], grouped_by_reducer),
    KernelDef::of("ExperimentalGroupByReducerDataset", &[], grouped_by_reducer),
    KernelDef::of("ChooseFastestBranchDataset", &[], |init| {
        let functions = init.function_list("branches")?;
        let functions: Vec<Arc<dyn ElementFunction>> =
            functions.into_iter().map(|f| Arc::new(GraphFunction(f)) as _).collect();
        let lengths = init.attr::<Vec<i64>>("other_arguments_lengths")?;
        let (elements, spec) = (init.attr::<i64>("num_elements_per_branch")?, spec(init)?);
        if lengths.len() != functions.len() {
            device::invalid!("branches and other_arguments_lengths must have the same length.");
        }
        dataset_kernel(init, move |ctx| {
            let ratio = (integer(ctx, 1, "ratio_numerator")?, integer(ctx, 2, "ratio_denominator")?);
            let mut start = 3usize;
            let mut branches = Vec::new();
            for (f, length) in functions.iter().zip(&lengths) {
                let end = usize::try_from(*length).ok().and_then(|length| start.checked_add(length));
                let Some(end) = end.filter(|end| *end <= ctx.num_inputs()) else {
                    device::invalid!(
                        "The sum of other_arguments_lengths must be the number of other_arguments, {}",
                        ctx.num_inputs() - 3
                    );
                };
                branches.push(captured(ctx, f, start..end)?);
                start = end;
            }
            if start != ctx.num_inputs() {
                device::invalid!("The sum of other_arguments_lengths must be the number of other_arguments");
            }
            choose_fastest_branch(
                dataset(ctx, 0)?,
                Branches { functions: branches, elements, ratio },
                spec.clone(),
            )
        })
    }),
    KernelDef::of("IndexFlatMapDataset", &[], |init| {
        let (map, index_map) = (function(init, "map_func")?, function(init, "index_map_func")?);
        let (map_arguments, spec) = (count(init, "Tmap_func_args")?, spec(init)?);
        dataset_kernel(init, move |ctx| {
            let (middle, end) = (1 + map_arguments, ctx.num_inputs() - 1);
            index_flat_map(
                dataset(ctx, 0)?,
                captured(ctx, &map, 1..middle)?,
                captured(ctx, &index_map, middle..end)?,
                integer(ctx, end, "output_cardinality")?,
                spec.clone(),
            )
        })
    }),
];

fn examples_parsed(init: &KernelInit<'_>) -> Result<Kernel> {
    let sloppy = init.attr::<bool>("sloppy")?;
    parsed(init, sloppy.then_some(false))
}

/// Returns the attribute `deterministic`; `None` for "default", which lets the options of the dataset decide.
fn deterministic(init: &KernelInit<'_>) -> Result<Option<bool>> {
    match &*init.attr::<String>("deterministic")? {
        "true" => Ok(Some(true)),
        "false" => Ok(Some(false)),
        "default" => Ok(None),
        other => device::invalid!("Invalid value for `deterministic`: {other}"),
    }
}

fn mapped(init: &KernelInit<'_>) -> Result<Kernel> {
    let (f, spec) = (function(init, "f")?, spec(init)?);
    let preserve_cardinality = init.attr::<bool>("preserve_cardinality")?;
    dataset_kernel(init, move |ctx| {
        let f = captured(ctx, &f, 1..ctx.num_inputs())?;
        map::map(dataset(ctx, 0)?, f, spec.clone(), preserve_cardinality)
    })
}

fn mapped_in_parallel(init: &KernelInit<'_>, deterministic: Option<bool>) -> Result<Kernel> {
    let (f, spec) = (function(init, "f")?, spec(init)?);
    let preserve_cardinality = init.attr::<bool>("preserve_cardinality")?;
    dataset_kernel(init, move |ctx| {
        let last = ctx.num_inputs() - 1;
        let how = Parallelism { calls: integer(ctx, last, "num_parallel_calls")?, deterministic };
        let f = captured(ctx, &f, 1..last)?;
        parallel_map(dataset(ctx, 0)?, f, spec.clone(), preserve_cardinality, how)
    })
}

fn mapped_and_batched(init: &KernelInit<'_>) -> Result<Kernel> {
    let (f, spec) = (function(init, "f")?, spec(init)?);
    let preserve_cardinality = init.attr::<bool>("preserve_cardinality")?;
    dataset_kernel(init, move |ctx| {
        let end = ctx.num_inputs() - 3;
        let how = Parallelism { calls: integer(ctx, end + 1, "num_parallel_calls")?, deterministic: None };
        let (size, drop_remainder) =
            (integer(ctx, end, "batch_size")?, boolean(ctx, end + 2, "drop_remainder")?);
        let f = captured(ctx, &f, 1..end)?;
        map_and_batch(dataset(ctx, 0)?, f, spec.clone(), size, drop_remainder, preserve_cardinality, how)
    })
}

/// A function that returns the prefetching of an interleave dataset, given the block length and the values of the
/// integer inputs that follow `block_length`.
type PrefetchFn = fn(&[i64], i64) -> Option<InterleavePrefetch>;

/// The [`PrefetchFn`] of op versions in which `num_parallel_calls` is the only integer input after `block_length`.
fn calls_only(numbers: &[i64], block_length: i64) -> Option<InterleavePrefetch> {
    numbers.first().map(|datasets| InterleavePrefetch { datasets: *datasets, elements: block_length })
}

/// The [`PrefetchFn`] of the first op version, whose inputs after `block_length` are `sloppy`, `buffer_output_elements`
/// and `prefetch_input_elements`. The order is deterministic even if `sloppy` is true.
fn legacy(numbers: &[i64], _: i64) -> Option<InterleavePrefetch> {
    numbers.first().map(|elements| InterleavePrefetch { datasets: -1, elements: *elements })
}

fn interleaved(init: &KernelInit<'_>, ahead: PrefetchFn) -> Result<Kernel> {
    let (f, spec, arguments) = (function(init, "f")?, spec(init)?, count(init, "Targuments")?);
    dataset_kernel(init, move |ctx| {
        let end = 1 + arguments;
        let mut numbers = Vec::new();
        for i in end..ctx.num_inputs() {
            if ctx.input(i)?.dtype() != graph::DType::Bool {
                numbers.push(integer(ctx, i, "cycle_length, block_length and sizes of buffers")?);
            }
        }
        let [cycle_length, block_length, rest @ ..] = &numbers[..] else {
            device::invalid!("cycle_length and block_length are missing");
        };
        let how = Interleaving {
            cycle_length: *cycle_length,
            block_length: *block_length,
            ahead: ahead(rest, *block_length),
        };
        interleave(dataset(ctx, 0)?, captured(ctx, &f, 1..end)?, spec.clone(), how)
    })
}

fn scanned(init: &KernelInit<'_>) -> Result<Kernel> {
    let (f, spec, states) = (function(init, "f")?, spec(init)?, count(init, "Tstate")?);
    let preserve_cardinality = init.attr::<bool>("preserve_cardinality")?;
    dataset_kernel(init, move |ctx| {
        let initial = tensors(ctx, 1..1 + states)?;
        let f = captured(ctx, &f, 1 + states..ctx.num_inputs())?;
        map::scan(dataset(ctx, 0)?, initial, f, spec.clone(), preserve_cardinality)
    })
}

fn taken_while(init: &KernelInit<'_>) -> Result<Kernel> {
    let predicate = function(init, "predicate")?;
    dataset_kernel(init, move |ctx| {
        map::take_while(dataset(ctx, 0)?, captured(ctx, &predicate, 1..ctx.num_inputs())?)
    })
}

fn grouped_by_window(init: &KernelInit<'_>) -> Result<Kernel> {
    let spec = spec(init)?;
    let (key, reduce) = (function(init, "key_func")?, function(init, "reduce_func")?);
    let window_size = function(init, "window_size_func")?;
    let key_end = 1 + count(init, "Tkey_func_other_arguments")?;
    let reduce_end = key_end + count(init, "Treduce_func_other_arguments")?;
    dataset_kernel(init, move |ctx| {
        grouped::group_by_window(
            dataset(ctx, 0)?,
            captured(ctx, &key, 1..key_end)?,
            captured(ctx, &reduce, key_end..reduce_end)?,
            captured(ctx, &window_size, reduce_end..ctx.num_inputs())?,
            spec.clone(),
        )
    })
}

fn grouped_by_reducer(init: &KernelInit<'_>) -> Result<Kernel> {
    let spec = spec(init)?;
    let (key, start) = (function(init, "key_func")?, function(init, "init_func")?);
    let (reduce, finalize) = (function(init, "reduce_func")?, function(init, "finalize_func")?);
    let key_end = 1 + count(init, "Tkey_func_other_arguments")?;
    let init_end = key_end + count(init, "Tinit_func_other_arguments")?;
    let reduce_end = init_end + count(init, "Treduce_func_other_arguments")?;
    dataset_kernel(init, move |ctx| {
        let reducer = grouped::Reducer {
            key: captured(ctx, &key, 1..key_end)?,
            init: captured(ctx, &start, key_end..init_end)?,
            reduce: captured(ctx, &reduce, init_end..reduce_end)?,
            finalize: captured(ctx, &finalize, reduce_end..ctx.num_inputs())?,
        };
        grouped::group_by_reducer(dataset(ctx, 0)?, reducer, spec.clone())
    })
}
