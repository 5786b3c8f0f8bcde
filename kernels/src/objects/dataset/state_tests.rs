//! Tests of saved states: pipelines of every kind, saved and restored at every position.

use super::batch::{batch, unbatch};
use super::cache::{CacheSource, cache};
use super::files::{Files, fixed_length_records, records, text_lines};
use super::function::CapturedFunction;
use super::interleave::{InterleavePrefetch, Interleaving, interleave};
use super::iterator::IteratorResource;
use super::parallel_map::{Parallelism, map_and_batch, parallel_filter, parallel_map};
use super::prefetch::Prefetch;
use super::shuffle::{SeedSource, Seeds, Shuffle};
use super::source::{Elements, Random, Range, Slices};
use super::state::{ExternalStatePolicy, restore, save};
use super::tests::{function, integers, of_number, range};
use super::window::{Windowing, sliding_window, window};
use super::*;
use super::{
    file_cache, index_map, map, matching_files, padded_batch, rebatch, sampling, speed, storage, transform,
};
use crate::objects::io::{Compression, FixedFormat, RecordWriter};
use crate::testing::TempDir;
use bytes::Bytes;
use device::Error;
use graph::{Bool8, Code};

/// A function that makes a dataset anew, like another process that runs the same program.
type MakeFn<'a> = &'a dyn Fn() -> Result<Arc<Dataset>>;

/// The result of a pull: an element, or the text of an error.
type Pulled = Result<Element, String>;

/// An iterator with its context.
struct Running {
    iterator: Box<dyn DatasetIterator>,
    ctx: IteratorContext,
}

impl Running {
    fn start(make: MakeFn<'_>) -> Result<Running> {
        let ctx = IteratorContext::root(None);
        Ok(Running { iterator: make()?.iterator(&ctx)?, ctx })
    }

    fn restored(make: MakeFn<'_>, state: Bytes) -> Result<Running> {
        let (ctx, dataset) = (IteratorContext::root(None), make()?);
        let iterator = restore(state, &ctx, || dataset.iterator(&ctx), &Pull::default())?;
        Ok(Running { iterator, ctx })
    }

    fn save(&mut self, policy: ExternalStatePolicy) -> Result<Bytes> {
        save(&mut *self.iterator, &self.ctx, policy, &Pull::default())
    }

    /// Returns up to `count` elements and errors.
    fn take(&mut self, count: usize) -> Vec<Pulled> {
        let mut all = Vec::new();
        while all.len() < count {
            match self.iterator.next(&Pull::default()) {
                Ok(Some(element)) => all.push(Ok(element)),
                Ok(None) => break,
                Err(error) => all.push(Err(error.to_string())),
            }
        }
        all
    }
}

/// The largest number of elements that a test takes from a dataset.
const MOST: usize = 24;

/// Checks for each position that a restored iterator returns the elements that the saved one returns, also when the
/// restored iterator is saved and restored again.
fn check(name: &str, make: MakeFn<'_>) -> Result<()> {
    let whole = Running::start(make)?.take(MOST);
    assert!(!whole.is_empty(), "{name}");
    for at in 0..=whole.len() {
        let mut first = Running::start(make)?;
        assert_eq!(first.take(at), whole[..at], "{name} before {at}");
        let state = first.save(ExternalStatePolicy::Fail)?;
        let mut second = Running::restored(make, state)?;
        let again = second.save(ExternalStatePolicy::Fail)?;
        assert_eq!(first.take(MOST - at), whole[at..], "{name} went on after {at}");
        assert_eq!(second.take(MOST - at), whole[at..], "{name} restored at {at}");
        assert_eq!(
            Running::restored(make, again)?.take(MOST - at),
            whole[at..],
            "{name} saved twice at {at}"
        );
    }
    Ok(())
}

fn shuffled(input: Arc<Dataset>, size: i64, is_new_each_time: bool, count: i64) -> Result<Arc<Dataset>> {
    Shuffle::dataset(input, size, SeedSource::new(Seeds(3, 9), is_new_each_time), count)
}

fn doubled() -> CapturedFunction {
    of_number(|x| Ok(Tensor::scalar(2 * x)))
}

fn odd() -> CapturedFunction {
    of_number(|x| Ok(Tensor::scalar(Bool8::from(x % 2 == 1))))
}

/// Returns a function of a number `n` that returns the dataset of `n` numbers, shuffled.
fn numbers() -> CapturedFunction {
    of_number(|n| {
        DatasetVariant::tensor(shuffled(Range::dataset(10 * n, 11 * n, 1, DType::Int64)?, 2, true, 1)?, [])
    })
}

const TWO_CALLS: Parallelism = Parallelism { calls: 2, deterministic: Some(true) };

#[test]
fn sources_continue() -> Result<()> {
    check("Range", &|| Range::dataset(0, 20, 3, DType::Int32))?;
    check("Slices", &|| {
        Slices::dataset(vec![Tensor::try_from([5i64, 7, 9])?, Tensor::try_from([1f32, 2.0, 3.0])?])
    })?;
    check("Tensors", &|| Elements::tensors(vec![Tensor::string("a")]))?;
    check("Random", &|| Random::dataset(SeedSource::new(Seeds(1, 2), false), integers()))
}

#[test]
fn selections_and_combinations_continue() -> Result<()> {
    check("Take", &|| transform::take(range(9)?, 4))?;
    check("Skip", &|| transform::skip(range(9)?, 4))?;
    check("Shard", &|| transform::shard(range(20)?, 3, 1, true))?;
    check("Concatenate", &|| transform::concatenate(range(3)?, range(4)?))?;
    check("Zip", &|| transform::zip(vec![range(3)?, range(4)?]))?;
    check("Repeat", &|| transform::repeat(range(3)?, 4))?;
    check("RepeatForEver", &|| transform::repeat(range(3)?, -1))?;
    check("Unique", &|| {
        transform::unique(map::map(range(9)?, of_number(|x| Ok(Tensor::scalar(x % 5))), integers(), true)?)
    })?;
    check("IgnoreErrors", &|| transform::ignore_errors(map::map(range(9)?, failing(), integers(), true)?))?;
    check("AssertCardinality", &|| transform::assert_cardinality(range(4)?, 5))?;
    check("DirectedInterleave", &|| {
        let selector = map::map(range(20)?, of_number(|x| Ok(Tensor::scalar(x % 2))), integers(), true)?;
        transform::directed_interleave(selector, vec![range(3)?, range(9)?], false)
    })?;
    check("DirectedInterleaveToFirstEnd", &|| {
        let selector = map::map(range(20)?, of_number(|x| Ok(Tensor::scalar(x % 2))), integers(), true)?;
        transform::directed_interleave(selector, vec![range(3)?, range(9)?], true)
    })
}

#[test]
fn samples_and_the_fastest_continue() -> Result<()> {
    check("Sampling", &|| sampling::sample(range(40)?, 0.4, Seeds(3, 9)))?;
    check("WeightedFlatMap", &|| sampling::weighted_flat_map(vec![range(4)?, range(9)?], &[0.3, 0.7]))?;
    check("Sleep", &|| speed::sleep(range(5)?, 1))?;
    check("ChooseFastest", &|| speed::choose_fastest(vec![range(9)?, range(9)?], 4))?;
    let rows = || function(|e| Ok(vec![Tensor::try_from([e[0].item::<i64>()? * 10, e[0].item::<i64>()?])?]));
    let place = || {
        function(|e| {
            let i = e[0].item::<i64>()?;
            Ok(vec![Tensor::scalar(i / 2), Tensor::scalar(i % 2)])
        })
    };
    check("IndexFlatMap", &|| index_map::index_flat_map(range(5)?, rows(), place(), 10, integers()))
}

#[test]
fn an_iterator_over_the_fastest_branch_is_not_saved() -> Result<()> {
    let make = || {
        let branch = function(Ok);
        let branches =
            speed::Branches { functions: vec![branch.clone(), branch], elements: 2, ratio: (1, 1) };
        speed::choose_fastest_branch(range(9)?, branches, integers())
    };
    let mut running = Running::start(&make)?;
    assert_eq!(running.take(MOST).len(), 9);
    let saved = running.save(ExternalStatePolicy::Fail).map_err(|error| error.to_string());
    assert!(saved.is_err_and(|error| error.contains("ChooseFastestBranchDataset cannot be saved")));
    Ok(())
}

#[test]
fn lists_of_files_and_caches_in_files_continue() -> Result<()> {
    let dir = TempDir::new()?;
    for name in ["a", "b", "c", "d"] {
        std::fs::write(dir.path().join(name), name).map_err(|e| Error::internal(e.to_string()))?;
    }
    let pattern = |end: &str| Bytes::from(format!("{}/{end}", dir.path().display()));
    check("MatchingFiles", &|| {
        matching_files::matching_files(vec![pattern("[a-c]"), pattern("none"), pattern("d")])
    })?;
    let full = dir.path().join("full");
    let make = || file_cache::file_cache(range(6)?, full.clone());
    assert_eq!(Running::start(&make)?.take(MOST).len(), 6);
    check("FileCache", &make)?;
    for at in 0..6 {
        let prefix = dir.path().join(format!("cache{at}"));
        let make = || file_cache::file_cache(range(6)?, prefix.clone());
        let mut first = Running::start(&make)?;
        let before = first.take(at);
        let state = first.save(ExternalStatePolicy::Fail)?;
        drop(first);
        let mut second = Running::restored(&make, state.clone())?;
        let after = second.take(MOST);
        assert_eq!([before, after.clone()].concat(), Running::start(&make)?.take(MOST), "saved at {at}");
        // The complete cache is read from the place of the saved state.
        assert_eq!(Running::restored(&make, state)?.take(MOST), after, "restored at {at}");
    }
    let left = std::fs::read_dir(dir.path()).map_err(|e| Error::internal(e.to_string()))?;
    let names = left.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    assert_eq!(names.filter(|name| name.contains('_') || name.contains("lock")).collect::<Vec<_>>(), [""; 0]);
    Ok(())
}

#[test]
fn stored_datasets_continue() -> Result<()> {
    let dir = TempDir::new()?;
    for compression in [Compression::None, Compression::Gzip, Compression::Snappy] {
        let folder = dir.path().join(format!("{compression:?}"));
        let third = || of_number(|x| Ok(Tensor::scalar(x % 3)));
        let save = || storage::Save { folder: folder.clone(), compression, shard: Some(third()) };
        save().run(&range(9)?, &Pull::default())?;
        let made = storage::load(&folder, compression, one_by_one(), integers())?;
        assert_eq!(made.cardinality, 9);
        // The function makes datasets of datasets, whose elements cannot be saved, so only the shards are.
        let mut loaded = Running {
            iterator: made.iterator(&IteratorContext::root(None))?,
            ctx: IteratorContext::root(None),
        };
        let of = |i: i64| Ok(vec![Tensor::scalar(i)]);
        assert_eq!(loaded.take(MOST), [0, 3, 6, 1, 4, 7, 2, 5, 8].map(of));
        let run = std::fs::read_dir(&folder).map_err(|e| Error::internal(e.to_string()))?;
        let run = run.filter_map(|entry| entry.ok().map(|entry| entry.path())).find(|path| path.is_dir());
        let shard = run.unwrap_or_default().join("00000001.shard");
        check("StoredShard", &|| storage::stored_shard(shard.clone(), 1, compression, integers()))?;
        check("StoredChunk", &|| {
            storage::stored_chunk(shard.join("00000000.snapshot"), compression, integers())
        })?;
        let mut passing = Running::start(&|| storage::saved(range(4)?, save()))?;
        assert_eq!(passing.take(MOST).len(), 4);
        let saved = passing.save(ExternalStatePolicy::Fail).map_err(|error| error.to_string());
        assert!(saved.is_err_and(|error| error.contains("SaveV2Dataset cannot be saved")));
        assert_eq!(storage::load(&folder, compression, one_by_one(), integers())?.cardinality, 4);
    }
    let folder = dir.path().join("files");
    std::fs::create_dir_all(folder.join("chunks")).map_err(|e| Error::internal(e.to_string()))?;
    for name in ["chunks/a", "chunks/b", "DONE"] {
        std::fs::write(folder.join(name), "").map_err(|e| Error::internal(e.to_string()))?;
    }
    check("ListSnapshotChunks", &|| storage::chunk_names(folder.clone()))
}

/// Returns a function from the dataset of the datasets of shards to the dataset of their elements.
fn one_by_one() -> CapturedFunction {
    function(|e| {
        let shards = DatasetVariant::of(&e[0])?;
        let same = function(Ok);
        Ok(vec![DatasetVariant::tensor(map::flat_map(shards, same, integers())?, [])?])
    })
}

/// Returns a snapshot of 9 numbers in a folder, in shards of three numbers each.
fn snapshot_in(folder: &std::path::Path, compression: Compression) -> Result<Arc<Dataset>> {
    let snapshot = storage::Snapshot {
        path: folder.display().to_string(),
        reader_prefix: String::new(),
        writer_prefix: String::new(),
        hash: 7,
        compression,
        reader: one_by_one(),
        shard: of_number(|x| Ok(Tensor::scalar(x / 3))),
    };
    storage::snapshot(range(9)?, snapshot)
}

#[test]
fn snapshots_saved_midway_are_complete_after_they_are_restored() -> Result<()> {
    let whole: Vec<Pulled> = (0..9i64).map(|i| Ok(vec![Tensor::scalar(i)])).collect();
    for compression in [Compression::None, Compression::Gzip, Compression::Snappy] {
        let dir = TempDir::new()?;
        let make: MakeFn<'_> = &|| snapshot_in(dir.path(), compression);
        let mut first = Running::start(make)?;
        assert_eq!(first.take(2), whole[..2]);
        let state = first.save(ExternalStatePolicy::Fail)?;
        assert_eq!(first.take(3), whole[2..5]);
        first.save(ExternalStatePolicy::Fail)?;
        assert_eq!(first.take(MOST), whole[5..]);
        // The shards of the later numbers have no elements from before the states were saved.
        assert_eq!(Running::start(make)?.take(MOST), whole, "{compression:?}");
        let mut second = Running::restored(make, state.clone())?;
        let run = std::fs::read_dir(dir.path().join("7")).map_err(|e| Error::internal(e.to_string()))?;
        let run = run.filter_map(|entry| entry.ok().map(|entry| entry.path())).find(|path| path.is_dir());
        let run = run.unwrap_or_default();
        assert!(!run.join("00000002.shard/00000002.snapshot").exists());
        assert_eq!(second.take(MOST), whole[2..]);
        assert_eq!(Running::start(make)?.take(MOST), whole, "{compression:?}, restored");
        std::fs::remove_dir_all(&run).map_err(|e| Error::internal(e.to_string()))?;
        let missing = Running::restored(make, state).err().map(|error| error.code());
        assert_eq!(missing, Some(Code::FailedPrecondition));
    }
    Ok(())
}

#[test]
fn datasets_are_not_stored_in_remote_stores() -> Result<()> {
    let folder = std::path::PathBuf::from("s3://bucket/folder");
    let save = storage::Save { folder: folder.clone(), compression: Compression::None, shard: None };
    let saved = save.run(&range(3)?, &Pull::default()).map_err(|error| error.code());
    assert_eq!(saved, Err(Code::Unimplemented));
    assert!(!std::path::Path::new("s3:").exists());
    Ok(())
}

/// Returns a function that fails for multiples of 3.
fn failing() -> CapturedFunction {
    of_number(|x| if x % 3 == 0 { Err(Error::invalid(format!("{x} is bad"))) } else { Ok(Tensor::scalar(x)) })
}

#[test]
fn functions_of_elements_continue() -> Result<()> {
    let one = |f: fn() -> CapturedFunction| move || map::map(range(7)?, f(), integers(), true);
    check("Map", &one(doubled))?;
    check("MapWithErrors", &one(failing))?;
    check("Filter", &|| map::filter(range(9)?, odd()))?;
    check("TakeWhile", &|| {
        map::take_while(range(9)?, of_number(|x| Ok(Tensor::scalar(Bool8::from(x < 4)))))
    })?;
    check("Scan", &|| {
        let sum = function(|e| {
            let sum = Tensor::scalar(e[0].item::<i64>()? + e[1].item::<i64>()?);
            Ok(vec![sum.clone(), sum])
        });
        map::scan(range(7)?, vec![Tensor::scalar(1i64)], sum, integers(), true)
    })?;
    check("FlatMap", &|| map::flat_map(range(6)?, numbers(), integers()))?;
    check("ParallelMap", &|| parallel_map(range(9)?, doubled(), integers(), true, TWO_CALLS))?;
    check("ParallelMapWithErrors", &|| parallel_map(range(9)?, failing(), integers(), true, TWO_CALLS))?;
    check("ParallelFilter", &|| parallel_filter(range(9)?, odd(), TWO_CALLS))?;
    check("MapAndBatch", &|| map_and_batch(range(9)?, doubled(), integers(), 2, false, true, TWO_CALLS))
}

#[test]
fn batches_and_windows_continue() -> Result<()> {
    check("Batch", &|| batch(range(10)?, 3, false, None))?;
    check("ParallelBatch", &|| batch(range(10)?, 3, true, Some(2)))?;
    check("Unbatch", &|| unbatch(batch(range(10)?, 3, false, None)?))?;
    check("PaddedBatch", &|| {
        padded_batch::padded_batch(
            range(7)?,
            2,
            vec![PartialShape::scalar()],
            vec![Tensor::scalar(0i64)],
            false,
        )
    })?;
    check("Rebatch", &|| rebatch::rebatch(batch(range(20)?, 5, false, None)?, &[1, 3], false, integers()))?;
    check("Split", &|| rebatch::split(batch(range(20)?, 5, false, None)?, 3, integers()))?;
    let windowing = Windowing { size: 3, shift: 2, stride: 2, drop_remainder: false };
    check("SlidingWindow", &|| sliding_window(range(9)?, windowing))?;
    let gaps = Windowing { size: 2, shift: 5, stride: 1, drop_remainder: true };
    check("SlidingWindowWithGaps", &|| sliding_window(range(20)?, gaps))?;
    Ok(())
}

/// A flat map with an open dataset cannot be saved if the element from which the dataset was made is a window, because
/// a window is a variant.
#[test]
fn an_open_window_has_no_state() {
    let windowing = Windowing { size: 3, shift: 2, stride: 2, drop_remainder: false };
    let saved = check("WindowsInOrder", &|| {
        let first = of_dataset(|d| DatasetVariant::tensor(d, []));
        map::flat_map(window(range(9)?, windowing)?, first, integers())
    });
    assert!(saved.is_err_and(|error| error.to_string().contains("variant")));
}

/// Returns a function of an element that is a dataset.
fn of_dataset(body: impl Fn(Arc<Dataset>) -> Result<Tensor> + Send + Sync + 'static) -> CapturedFunction {
    function(move |element| Ok(vec![body(DatasetVariant::of(&element[0])?)?]))
}

#[test]
fn shuffles_caches_and_reading_ahead_continue() -> Result<()> {
    for is_new_each_time in [false, true] {
        check("Shuffle", &|| shuffled(range(9)?, 4, is_new_each_time, 1))?;
        check("ShuffleAndRepeat", &|| shuffled(range(5)?, 7, is_new_each_time, 4))?;
        check("RepeatOfShuffle", &|| transform::repeat(shuffled(range(5)?, 3, is_new_each_time, 1)?, -1))?;
        check("RepeatOfTakeOfShuffle", &|| {
            transform::repeat(transform::take(shuffled(range(5)?, 3, is_new_each_time, 1)?, 3)?, -1)
        })?;
        check("RepeatOfPrefetch", &|| {
            transform::repeat(Prefetch::dataset(shuffled(range(5)?, 3, is_new_each_time, 1)?, 2)?, -1)
        })?;
        check("PrefetchOfRepeat", &|| {
            Prefetch::dataset(transform::repeat(shuffled(range(5)?, 3, is_new_each_time, 1)?, -1)?, 7)
        })?;
    }
    check("RepeatOfCache", &|| {
        let cached = cache(shuffled(range(5)?, 5, true, 1)?, CacheSource::Own(PerPipeline::default()))?;
        transform::repeat(cached, -1)
    })?;
    check("RepeatOfTakeOfCache", &|| {
        let cached = cache(shuffled(range(4)?, 5, true, 1)?, CacheSource::Own(PerPipeline::default()))?;
        transform::concatenate(cached.clone(), transform::take(cached, 2)?)
    })
}

#[test]
fn interleavings_continue() -> Result<()> {
    let how = |cycle_length, block_length, ahead| Interleaving { cycle_length, block_length, ahead };
    let ahead = |datasets, elements| Some(InterleavePrefetch { datasets, elements });
    for how in [how(2, 1, None), how(3, 2, None), how(2, 1, ahead(1, 3)), how(4, 2, ahead(-1, 1))] {
        check("Interleave", &|| interleave(range(6)?, numbers(), integers(), how))?;
    }
    Ok(())
}

#[test]
fn files_continue() -> Result<()> {
    let dir = TempDir::new()?;
    let paths = |names: &[&str]| names.iter().map(|name| dir.path().join(name)).collect::<Vec<_>>();
    dir.write("a", b"one\r\ntwo\n\nthree")?;
    dir.write("b", b"")?;
    dir.write("c", b"HHabcabdabeF")?;
    for (name, compression) in [("r", Compression::None), ("z", Compression::Gzip)] {
        let mut writer = RecordWriter::create(dir.path().join(name), compression)?;
        for record in [&b"first"[..], b"", b"third record"] {
            writer.write(record)?;
        }
        writer.finish()?;
    }
    let files = |names: &[&str], compression, buffer| Files { paths: paths(names), compression, buffer };
    for buffer in [None, Some(1)] {
        check("TextLine", &|| text_lines(files(&["a", "b", "a"], Compression::None, buffer)))?;
        check("TFRecord", &|| records(files(&["r", "r"], Compression::None, buffer), vec![]))?;
        check("GzippedTFRecord", &|| records(files(&["z", "z"], Compression::Gzip, buffer), vec![]))?;
        let format = FixedFormat { header: 2, record: 3, footer: 1, hop: 0 };
        check("FixedLengthRecord", &|| {
            fixed_length_records(files(&["c", "c"], Compression::None, buffer), format)
        })?;
    }
    check("MissingFile", &|| text_lines(files(&["a", "none"], Compression::None, None)))?;
    Ok(())
}

#[test]
fn damaged_states_are_refused() -> Result<()> {
    let make = || {
        let input = Prefetch::dataset(shuffled(range(9)?, 4, true, 2)?, 2)?;
        interleave(
            input,
            numbers(),
            integers(),
            Interleaving { cycle_length: 2, block_length: 1, ahead: None },
        )
    };
    let mut running = Running::start(&make)?;
    running.take(5);
    let state = running.save(ExternalStatePolicy::Fail)?;
    for end in 0..state.len() {
        let cut = Running::restored(&make, state.slice(..end)).map(|_| ()).map_err(|e| e.code());
        assert_eq!(cut, Err(Code::InvalidArgument), "{end}");
    }
    // A changed byte may change a number, but never takes the process down.
    for at in 0..state.len() {
        let mut bytes = state.to_vec();
        bytes[at] ^= 0xff;
        if let Ok(mut running) = Running::restored(&make, bytes.into()) {
            running.take(3);
        }
    }
    let other = Running::restored(&|| batch(range(3)?, 2, false, None), state);
    let text = other.map(|_| ()).map_err(|e| e.to_string());
    let expected = "the saved state is of another dataset: it has InterleaveDataset where this iterator has \
                    BatchV2Dataset";
    assert!(text.as_ref().is_err_and(|text| text.contains(expected)), "{text:?}");
    Ok(())
}

#[test]
fn an_iterator_without_a_dataset_has_no_state() -> Result<()> {
    let iterator = IteratorResource::new(integers());
    let refused = iterator.restore(Bytes::new(), &Pull::default());
    assert_eq!(refused.as_ref().map_err(Error::code), Err(Code::FailedPrecondition));
    iterator.set(&range(3)?)?;
    let refused = iterator.restore(Bytes::from_static(b"rubbish"), &Pull::default());
    assert_eq!(refused.as_ref().map_err(Error::code), Err(Code::InvalidArgument));
    Ok(())
}
