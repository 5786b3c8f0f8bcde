//! Tests that every neural-network and random op has a CPU kernel for each dtype for which TensorFlow 2.21's CPU has
//! one, except complex dtypes, and that each kernel can be created.

use anabranch_kernels::testing::lone_device;
use device::Device;
use device::kernel::KernelInit;
use graph::DType::{self, *};
use graph::Node;
use std::sync::Arc;

const FLOATS: &[DType] = &[Half, BFloat16, Float, Double];
const REALS: &[DType] =
    &[Half, BFloat16, Float, Double, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
/// [`REALS`] without the dtypes that MaxPool's op definition excludes.
const POOLED: &[DType] = &[Half, BFloat16, Float, Double, Int8, Int16, Int32, Int64, UInt8, UInt16];
const ANY: &[DType] = &[
    Half, BFloat16, Float, Double, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Bool, String,
    Resource,
];

const TABLE: &[(&str, &str, &[DType])] = &[
    ("Relu", "T", REALS),
    ("ReluGrad", "T", REALS),
    ("Relu6", "T", REALS),
    ("Relu6Grad", "T", REALS),
    ("LeakyRelu", "T", FLOATS),
    ("LeakyReluGrad", "T", FLOATS),
    ("Elu", "T", FLOATS),
    ("EluGrad", "T", FLOATS),
    ("Selu", "T", FLOATS),
    ("SeluGrad", "T", FLOATS),
    ("Softplus", "T", FLOATS),
    ("SoftplusGrad", "T", FLOATS),
    ("Softsign", "T", FLOATS),
    ("SoftsignGrad", "T", FLOATS),
    ("L2Loss", "T", FLOATS),
    ("Softmax", "T", FLOATS),
    ("LogSoftmax", "T", FLOATS),
    ("SoftmaxCrossEntropyWithLogits", "T", FLOATS),
    ("SparseSoftmaxCrossEntropyWithLogits", "T", FLOATS),
    ("SparseSoftmaxCrossEntropyWithLogits", "Tlabels", &[Int32, Int64]),
    ("BiasAdd", "T", REALS),
    ("BiasAddV1", "T", REALS),
    ("BiasAddGrad", "T", REALS),
    ("Conv2D", "T", &[Half, BFloat16, Float, Double, Int32]),
    ("Conv2DBackpropInput", "T", &[Half, BFloat16, Float, Double, Int32]),
    ("Conv2DBackpropFilter", "T", FLOATS),
    ("MaxPool", "T", POOLED),
    ("MaxPoolGrad", "T", REALS),
    ("MaxPoolGradGrad", "T", REALS),
    ("AvgPool", "T", FLOATS),
    ("AvgPoolGrad", "T", FLOATS),
    ("RandomUniform", "dtype", FLOATS),
    ("RandomUniformInt", "Tout", &[Int32, Int64]),
    ("RandomStandardNormal", "dtype", FLOATS),
    ("TruncatedNormal", "dtype", FLOATS),
    ("RandomShuffle", "T", ANY),
    ("Multinomial", "T", FLOATS),
    ("Multinomial", "output_dtype", &[Int32, Int64]),
];

#[test]
fn every_dtype_has_a_kernel() -> Result<(), Box<dyn std::error::Error>> {
    let device: Arc<Device> = Arc::new(lone_device());
    for (op, attr, types) in TABLE {
        let op = graph::ops::lookup(op).ok_or(*op)?;
        for &dtype in *types {
            let mut node = Node::new("n", op);
            for spec in op.attrs.iter().filter(|a| a.default.is_none()) {
                match spec.name {
                    "strides" | "ksize" => node.attrs.set(spec.name, vec![1i64; 4]),
                    "padding" => node.attrs.set("padding", "VALID"),
                    // Each remaining attribute without a default, which is a dtype, gets the last of its allowed
                    // values.
                    name => node.attrs.set(name, spec.allowed.last().cloned().unwrap_or(Float.into())),
                }
            }
            if op.name() == "Multinomial" {
                node.attrs.set("T", Float);
            }
            node.attrs.set(attr, dtype);
            op.check_attrs(&node.attrs)?;
            let what = || format!("{} {attr}={dtype}", op.name());
            let def = anabranch_kernels::table().find(&node).ok_or_else(what)?;
            let (inputs, outputs) = (node.input_types()?, node.output_types()?);
            let init = KernelInit {
                node: &node,
                inputs: &inputs,
                outputs: &outputs,
                device: &device,
                functions: device::function::no_functions(),
            };
            (def.make)(&init).map_err(|e| format!("{}: {e}", what()))?;
        }
    }
    Ok(())
}
