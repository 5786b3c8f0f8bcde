//! Kernels of the objects that the iterators of a dataset share by a handle: seed generators and memory caches.

use crate::objects::dataset::DUMMY;
use crate::objects::dataset::PerPipeline;
use crate::objects::dataset::argument::integer;
use crate::objects::dataset::cache::{CacheSource, SharedCache};
use crate::objects::dataset::shuffle::{SeedGenerator, SeedSource, Seeds, SharedSeeds};
use device::Device;
use device::Result;
use device::handle::single_handle;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::resource::Resource;
use graph::{ResourceHandle, Tensor, Variant};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("AnonymousRandomSeedGenerator", &[], |_| {
        Kernel::sync(|ctx| {
            let seeds = Seeds(integer(ctx, 0, "seed")?, integer(ctx, 1, "seed2")?);
            output_anonymous(ctx, SharedSeeds(Arc::new(SeedGenerator::new(seeds.or_random(), true))))
        })
    }),
    KernelDef::of("AnonymousSeedGenerator", &[], |_| {
        Kernel::sync(|ctx| {
            let seeds = Seeds(integer(ctx, 0, "seed")?, integer(ctx, 1, "seed2")?);
            let reshuffle = crate::objects::dataset::argument::boolean(ctx, 2, "reshuffle")?;
            output_anonymous(ctx, SharedSeeds(Arc::new(SeedGenerator::new(seeds.or_random(), reshuffle))))
        })
    }),
    KernelDef::of("DeleteSeedGenerator", &[], delete::<SharedSeeds>),
    KernelDef::of("DeleteRandomSeedGenerator", &[], delete::<SharedSeeds>),
    KernelDef::of("DummySeedGenerator", &[], dummy),
    KernelDef::of("AnonymousMemoryCache", &[], |_| {
        Kernel::sync(|ctx| output_anonymous(ctx, SharedCache(Arc::default())))
    }),
    KernelDef::of("DeleteMemoryCache", &[], delete::<SharedCache>),
    KernelDef::of("DummyMemoryCache", &[], dummy),
];

/// Returns a handle to the resource `name` of kind `kind` on a device.
pub(super) fn handle(device: &Arc<Device>, name: String, kind: &'static str) -> ResourceHandle {
    ResourceHandle {
        device: device.name().to_string().into(),
        container: device.resources().default_container().clone(),
        name: name.into(),
        hash_code: kind.bytes().fold(5381, |hash: u64, b| hash.wrapping_mul(33) ^ u64::from(b)),
        type_name: kind.into(),
        dtypes_and_shapes: Vec::new(),
    }
}

/// Returns a name for an object of kind `kind` that no other object has.
pub(super) fn anonymous(kind: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("_Anonymous{kind}{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Stores an object among the device's resources; outputs its handle and a deleter.
fn output_anonymous<T: Resource>(ctx: &mut KernelContext<'_>, object: T) -> Result<()> {
    let handle = handle(ctx.device(), anonymous(T::KIND), T::KIND);
    ctx.resources().lookup_or_create(&handle.container, &handle.name, || Ok(object))?;
    ctx.set_output(0, Tensor::resource(handle));
    ctx.set_output(1, Tensor::variants(vec![Variant::EMPTY], graph::Shape::scalar())?);
    Ok(())
}

/// Makes a kernel that outputs a handle that refers to no object.
fn dummy(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let handle = handle(ctx.device(), DUMMY.to_owned(), DUMMY);
        ctx.set_output(0, Tensor::resource(handle));
        Ok(())
    })
}

/// Returns the resource handle in input `i`.
pub(super) fn handle_input<'a>(ctx: &'a KernelContext<'_>, i: usize) -> Result<&'a ResourceHandle> {
    single_handle(ctx.input(i)?)
}

/// Returns the object behind the handle in input `i`.
pub(super) fn object_input<T: Resource>(ctx: &KernelContext<'_>, i: usize) -> Result<Arc<T>> {
    let handle = handle_input(ctx, i)?;
    ctx.resources().lookup(&handle.container, &handle.name)
}

/// Makes a kernel that removes the object behind the handle in input 0.
fn delete<T: Resource>(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let handle = handle_input(ctx, 0)?;
        ctx.resources().remove::<T>(&handle.container, &handle.name);
        Ok(())
    })
}

/// Returns the seed generator behind the handle in input `i`.
pub(super) fn seed_generator(ctx: &KernelContext<'_>, i: usize) -> Result<Arc<SeedGenerator>> {
    Ok(object_input::<SharedSeeds>(ctx, i)?.0.clone())
}

/// Returns the seed generator behind the handle in input `i`. If the handle is a dummy, returns a source of generators
/// that start from `seeds`.
pub(super) fn seed_source(
    ctx: &KernelContext<'_>,
    i: usize,
    seeds: Seeds,
    is_new_each_time: bool,
) -> Result<SeedSource> {
    match &*handle_input(ctx, i)?.type_name {
        DUMMY => Ok(SeedSource::new(seeds, is_new_each_time)),
        _ => Ok(SeedSource::Shared(seed_generator(ctx, i)?)),
    }
}

/// Returns the cache behind the handle in input `i`. If the handle is a dummy, each pipeline gets its own cache.
pub(super) fn cache_source(ctx: &KernelContext<'_>, i: usize) -> Result<CacheSource> {
    match &*handle_input(ctx, i)?.type_name {
        DUMMY => Ok(CacheSource::Own(PerPipeline::default())),
        _ => Ok(CacheSource::Shared(object_input::<SharedCache>(ctx, i)?.0.clone())),
    }
}
