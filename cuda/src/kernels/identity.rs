//! Kernels that check their input for NaN and infinity, and output the input unchanged. A kernel completes when
//! the result of the check has been downloaded; no thread waits for the GPU.

use super::support::{function, read, type_name, write};
use crate::engine::{Arguments, KernelStream, Source};
use device::kernel::{AsyncContext, Kernel, KernelDef, KernelInit};
use device::value::Value;
use device::{Error, Result};
use graph::{DType, Shape, Tensor};
use kernels::numeric::dispatch::FLOATS;
use kernels::plan::identity::NonFiniteKinds;
use smallvec::smallvec;
use std::sync::Arc;

static SOURCE: Source = Source { file: "identity.cu", text: include_str!("identity.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("CheckNumerics", &[("T", FLOATS)], |init| check(init, false)),
    KernelDef::of("CheckNumericsV2", &[("T", FLOATS)], |init| check(init, true)),
];

/// Makes the kernel of the check; if `signed` is set, the error message distinguishes positive and negative
/// infinity.
fn check(init: &KernelInit<'_>, signed: bool) -> Result<Kernel> {
    let message: Arc<str> = init.attr::<String>("message")?.into();
    let name = format!("check_numerics<{}>", type_name(init.input_type(0))?);
    let look = function(init, &SOURCE, name)?;
    Kernel::asynchronous(move |ctx| {
        let AsyncContext { node, device, mut inputs, done, .. } = ctx;
        let value = inputs.pop().unwrap_or_default();
        let enqueued = KernelStream::of(&device).and_then(|stream| {
            let Value::Device(x) = &value else {
                return Err(Error::internal(format!("{value:?} is not in the GPU's memory")));
            };
            let found = stream.allocate(&node.name, DType::Int64, Shape::new(&[4])?)?;
            stream.fill(&found, 0)?;
            let n = x.shape.num_elements();
            let arguments = Arguments::new().address(read(x)?).address(write(&found)?).count(n);
            stream.launch(&look, n, &arguments)?;
            Ok(found)
        });
        match enqueued {
            Ok(found) => {
                let message = message.clone();
                device.processor().download(
                    found,
                    Box::new(move |found| {
                        let checked = found.and_then(|found| check_counts(&found, &message, signed));
                        done(checked.map(|()| smallvec![value]));
                    }),
                );
            }
            Err(error) => done(Err(error)),
        }
    })
}

/// Returns the error for the flags in `found`, which the GPU kernel has set.
fn check_counts(found: &Tensor, message: &str, signed: bool) -> Result<()> {
    match *found.values::<i64>()? {
        [0, 0, _, _] => Ok(()),
        [nan, infinite, negative, positive] => {
            let [nan, infinite, negative, positive] = [nan, infinite, negative, positive].map(|v| v != 0);
            Err(NonFiniteKinds { nan, infinite, negative, positive }.error(message, signed))
        }
        _ => Err(Error::internal("a check of numbers gave too few")),
    }
}
