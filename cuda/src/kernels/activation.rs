//! Activation functions of neural networks.

use super::elementwise::{map, same_shape, zip};
use super::reduce::to_scalar;
use crate::engine::Source;
use device::kernel::KernelDef;
use kernels::numeric::dispatch::FLOATS;

pub(super) static SOURCE: Source = Source { file: "activation.cu", text: include_str!("activation.cu") };

macro_rules! kernels {
    ($($op:literal $gradient:literal)*) => {
        &[
            $(
                KernelDef::enqueuing($op, &[("T", FLOATS)], |init| map(init, &SOURCE, $op, 0.0)),
                KernelDef::enqueuing($gradient, &[("T", FLOATS)], |init| zip(init, &SOURCE, $gradient, 0.0, same_shape)),
            )*
            KernelDef::enqueuing("LeakyRelu", &[("T", FLOATS)], |init| {
                map(init, &SOURCE, "LeakyRelu", init.attr::<f32>("alpha")?.into())
            }),
            KernelDef::enqueuing("LeakyReluGrad", &[("T", FLOATS)], |init| {
                zip(init, &SOURCE, "LeakyReluGrad", init.attr::<f32>("alpha")?.into(), same_shape)
            }),
            KernelDef::enqueuing("L2Loss", &[("T", FLOATS)], |init| to_scalar(init, "L2Loss")),
        ]
    };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    "Relu" "ReluGrad" "Relu6" "Relu6Grad" "Elu" "EluGrad" "Selu" "SeluGrad" "Softplus" "SoftplusGrad"
    "Softsign" "SoftsignGrad"
};
