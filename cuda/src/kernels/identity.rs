//! Kernels that pass their input through, and say what is wrong with it: the answer waits for the GPU, no thread does.

use super::support::{function, read, type_name, write};
use crate::engine::{Arguments, Lane, Source};
use device::kernel::{AsyncContext, Kernel, KernelDef, KernelInit};
use device::value::Value;
use device::{Error, Result};
use graph::{DType, Shape, Tensor};
use kernels::identity::Found;
use kernels::numeric::dispatch::FLOATS;
use smallvec::smallvec;
use std::sync::Arc;

static SOURCE: Source = Source { file: "identity.cu", text: include_str!("identity.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("CheckNumerics", &[("T", FLOATS)], |init| check(init, false)),
    KernelDef::of("CheckNumericsV2", &[("T", FLOATS)], |init| check(init, true)),
];

fn check(init: &KernelInit<'_>, signed: bool) -> Result<Kernel> {
    let message: Arc<str> = init.attr::<String>("message")?.into();
    let name = format!("check_numerics<{}>", type_name(init.input_type(0))?);
    let look = function(init, &SOURCE, name)?;
    Kernel::asynchronous(move |ctx| {
        let AsyncContext { node, device, mut inputs, done, .. } = ctx;
        let value = inputs.pop().unwrap_or_default();
        let enqueued = Lane::of(&*device).and_then(|lane| {
            let Value::Device(x) = &value else {
                return Err(Error::internal(format!("{value:?} is not in the GPU's memory")));
            };
            let found = lane.allocate(&node.name, DType::Int64, Shape::new(&[4])?)?;
            lane.fill(&found, 0)?;
            let n = x.shape.num_elements();
            let arguments = Arguments::new().address(read(x)?).address(write(&found)?).count(n);
            lane.launch(&look, n, &arguments)?;
            Ok(found)
        });
        match enqueued {
            Ok(found) => {
                let message = message.clone();
                device.processor().download(
                    found,
                    Box::new(move |found| {
                        let checked = found.and_then(|found| verdict(&found, &message, signed));
                        done(checked.map(|()| smallvec![value]));
                    }),
                );
            }
            Err(error) => done(Err(error)),
        }
    })
}

fn verdict(found: &Tensor, message: &str, signed: bool) -> Result<()> {
    match *found.values::<i64>()? {
        [0, 0, _, _] => Ok(()),
        [nan, infinite, negative, positive] => {
            let [nan, infinite, negative, positive] = [nan, infinite, negative, positive].map(|v| v != 0);
            Err(Found { nan, infinite, negative, positive }.error(message, signed))
        }
        _ => Err(Error::internal("a check of numbers gave too few")),
    }
}
