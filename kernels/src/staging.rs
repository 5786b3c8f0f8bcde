//! Kernels of staging areas.

use crate::objects::staging::{Bounds, StagingArea, StagingMap, Tuple, TupleIndices};
use device::Result;
use device::attempt::Finish;
use device::cancel::Cancellation;
use device::handle::{ObjectName, Owner};
use device::kernel::{AsyncContext, Done, Kernel, KernelDef, KernelInit};
use device::resource::Resource;
use device::value::{AnyTensor, Value};
use graph::{DType, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Stage", &[], |init| {
        operation(init, area(init)?, |area, ctx| {
            let tuple = tuple(&ctx, 0);
            start(ctx, tuple, |step, tuple, done| area.put(step, tuple, tensors(done)));
        })
    }),
    KernelDef::of("Unstage", &[], |init| {
        operation(init, area(init)?, |area, ctx| {
            start(ctx, Ok(()), |step, (), done| area.get(step, tensors(done)));
        })
    }),
    KernelDef::of("StagePeek", &[], |init| {
        operation(init, area(init)?, |area, ctx| {
            let place = place(&ctx);
            start(ctx, place, |step, place, done| area.peek(step, place, tensors(done)));
        })
    }),
    KernelDef::of("StageSize", &[], |init| size(area(init)?, StagingArea::len)),
    KernelDef::of("StageClear", &[], |init| clear(area(init)?, StagingArea::clear)),
    KernelDef::of("MapStage", &[], map_stage),
    KernelDef::of("OrderedMapStage", &[], map_stage),
    KernelDef::of("MapPeek", &[], |init| by_key(init, StagingMap::peek)),
    KernelDef::of("OrderedMapPeek", &[], |init| by_key(init, StagingMap::peek)),
    KernelDef::of("MapUnstage", &[], map_unstage),
    KernelDef::of("OrderedMapUnstage", &[], map_unstage),
    KernelDef::of("MapUnstageNoKey", &[], map_unstage_any),
    KernelDef::of("OrderedMapUnstageNoKey", &[], map_unstage_any),
    KernelDef::of("MapSize", &[], |init| size(map(init)?, StagingMap::len)),
    KernelDef::of("OrderedMapSize", &[], |init| size(map(init)?, StagingMap::len)),
    KernelDef::of("MapIncompleteSize", &[], |init| size(map(init)?, StagingMap::incomplete_len)),
    KernelDef::of("OrderedMapIncompleteSize", &[], |init| size(map(init)?, StagingMap::incomplete_len)),
    KernelDef::of("MapClear", &[], |init| clear(map(init)?, StagingMap::clear)),
    KernelDef::of("OrderedMapClear", &[], |init| clear(map(init)?, StagingMap::clear)),
];

/// The staging area that a node names; the first node that runs creates it.
struct NamedArea<T: Resource> {
    owner: Owner<T>,
    make: Box<dyn Fn() -> T + Send + Sync>,
}

impl<T: Resource> NamedArea<T> {
    fn new(
        init: &KernelInit<'_>,
        make: impl Fn(Bounds) -> T + Send + Sync + 'static,
    ) -> Result<NamedArea<T>> {
        let bound = |name| Ok::<_, device::Error>(usize::try_from(init.attr::<i64>(name)?).unwrap_or(0));
        let bounds = Bounds { capacity: bound("capacity")?, bytes: bound("memory_limit")? };
        let owner = Owner::new(init, ObjectName::of(init, true)?);
        Ok(NamedArea { owner, make: Box::new(move || make(bounds)) })
    }

    fn get(&self) -> Result<Arc<T>> {
        self.owner.object(|_| Ok((self.make)()))
    }
}

fn area(init: &KernelInit<'_>) -> Result<NamedArea<StagingArea>> {
    NamedArea::new(init, StagingArea::new)
}

fn map(init: &KernelInit<'_>) -> Result<NamedArea<StagingMap>> {
    let width = init.attr::<Vec<DType>>("dtypes")?.len();
    NamedArea::new(init, move |bounds| StagingMap::new(bounds, width))
}

fn size<T: Resource>(area_by_name: NamedArea<T>, size: fn(&T) -> usize) -> Result<Kernel> {
    Kernel::sync(move |ctx| {
        let size = size(&*area_by_name.get()?);
        ctx.set_output(0, Tensor::from(i32::try_from(size).unwrap_or(i32::MAX)));
        Ok(())
    })
}

fn clear<T: Resource>(area_by_name: NamedArea<T>, clear: fn(&T)) -> Result<Kernel> {
    Kernel::sync(move |_| {
        clear(&*area_by_name.get()?);
        Ok(())
    })
}

/// Makes the kernel of an operation on a staging area; the operation may wait.
fn operation<T: Resource>(
    _: &KernelInit<'_>,
    area_by_name: NamedArea<T>,
    run: impl Fn(Arc<T>, AsyncContext) + Send + Sync + 'static,
) -> Result<Kernel> {
    Kernel::asynchronous(move |ctx| match area_by_name.get() {
        Ok(object) => run(object, ctx),
        Err(error) => ctx.done(Err(error)),
    })
}

/// Starts an operation with its arguments, or completes the node with the error that occurred when they were read.
fn start<A>(ctx: AsyncContext, arguments: Result<A>, run: impl FnOnce(&Arc<Cancellation>, A, Done)) {
    let AsyncContext { step, done, .. } = ctx;
    match arguments {
        Ok(arguments) => run(&step.cancellation, arguments, done),
        Err(error) => done(Err(error)),
    }
}

/// Returns the inputs from index `first` on as a tuple to store.
fn tuple(ctx: &AsyncContext, first: usize) -> Result<Tuple> {
    ctx.inputs[first..].iter().map(|input| AnyTensor::persisted(input.clone(), &ctx.device)).collect()
}

fn values(tuple: Tuple) -> SmallVec<[Value; 4]> {
    tuple.into_iter().map(Value::from).collect()
}

fn tensors(done: Done) -> Finish<Tuple> {
    Box::new(move |result| done(result.map(values)))
}

/// Returns the completion callback of a node that outputs the tensors of a tuple, but not its key.
fn without_key(done: Done) -> Finish<(i64, Tuple)> {
    Box::new(move |result| done(result.map(|(_, tuple)| values(tuple))))
}

fn place(ctx: &AsyncContext) -> Result<usize> {
    let index = ctx.input(0)?.item::<i32>()?;
    usize::try_from(index)
        .map_err(|_| device::Error::invalid(format!("index must not be negative, got {index}")))
}

fn key(ctx: &AsyncContext) -> Result<i64> {
    let key = ctx.input(0)?;
    if key.num_elements() != 1 {
        device::invalid!("key must be an int64 scalar, got tensor with shape: {}", key.shape());
    }
    Ok(key.item::<i64>()?)
}

fn map_stage(init: &KernelInit<'_>) -> Result<Kernel> {
    let types = init.attr::<Vec<DType>>("dtypes")?;
    operation(init, map(init)?, move |map, ctx| {
        let arguments = key(&ctx).and_then(|key| {
            let places = TupleIndices::of(ctx.input(1)?, key, types.len())?;
            let tuple = tuple(&ctx, 2)?;
            places.check(&tuple, &types)?;
            Ok((key, places, tuple))
        });
        start(ctx, arguments, |step, (key, places, tuple), done| {
            map.put(step, key, places, tuple, without_key(done));
        });
    })
}

/// A function that starts an operation on the tuple with a given key.
type OnTuple = fn(&StagingMap, &Arc<Cancellation>, i64, TupleIndices, Finish<(i64, Tuple)>);

fn by_key(init: &KernelInit<'_>, run: OnTuple) -> Result<Kernel> {
    let width = init.attr::<Vec<DType>>("dtypes")?.len();
    let outputs = init.outputs.len();
    operation(init, map(init)?, move |map, ctx| {
        let arguments = key(&ctx).and_then(|key| Ok((key, picked(ctx.input(1)?, key, width, outputs)?)));
        start(ctx, arguments, |step, (key, places), done| run(&map, step, key, places, without_key(done)));
    })
}

fn picked(indices: &Tensor, key: i64, width: usize, outputs: usize) -> Result<TupleIndices> {
    let places = TupleIndices::of(indices, key, width)?;
    if places.len() != outputs {
        device::invalid!("{} indices do not pick {outputs} outputs", places.len());
    }
    Ok(places)
}

fn map_unstage(init: &KernelInit<'_>) -> Result<Kernel> {
    by_key(init, |map, step, key, places, done| map.take(step, Some(key), places, done))
}

fn map_unstage_any(init: &KernelInit<'_>) -> Result<Kernel> {
    let width = init.attr::<Vec<DType>>("dtypes")?.len();
    let outputs = init.outputs.len() - 1;
    operation(init, map(init)?, move |map, ctx| {
        let places = ctx.input(0).and_then(|indices| picked(indices, 0, width, outputs));
        start(ctx, places, |step, places, done| {
            let give = |(key, tuple): (i64, Tuple)| {
                let mut all: SmallVec<[Value; 4]> = SmallVec::new();
                all.push(Value::Host(Tensor::from(key)));
                all.extend(values(tuple));
                all
            };
            map.take(step, None, places, Box::new(move |result| done(result.map(give))));
        });
    })
}
