//! Fused ops, which are chains of other ops. The kernels of the chain run one after another, each in the buffer of
//! the previous result if possible; chains of element-wise ops run in one pass over memory.

mod elementwise;
mod strip;

pub(crate) use strip::has_strip;

use crate::numeric::dispatch::FLOATS;
use crate::plan::fused::{
    FusedOp, NORMALIZATION_INPUTS, check_inputs, copied, fused_ops, ops_after_normalization, run, run_ops,
    texts,
};
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::value::Value;
use device::{Error, Result};
use graph::DType::{BFloat16, Double, Float, Half};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("_FusedMatMul", &[("T", &[BFloat16, Half, Float])], |init| {
        let attrs = ["T", "transpose_a", "transpose_b"];
        let product = FusedOp::new(init, "MatMul", 2, copied(init, &attrs)?)?;
        chain(init, product, fused_ops(init, 2)?)
    }),
    KernelDef::of("_FusedConv2D", &[("T", &[Half, Float, Double])], |init| {
        if init.attr::<String>("filter_format")? != "HWIO" {
            return Err(Error::unimplemented("_FusedConv2D: filters of another format than HWIO"));
        }
        let attrs = ["T", "strides", "padding", "explicit_paddings", "data_format", "dilations"];
        let convolution = FusedOp::new(init, "Conv2D", 2, copied(init, &attrs)?)?;
        chain(init, convolution, fused_ops(init, 2)?)
    }),
    KernelDef::of("_FusedBatchNormEx", &[("T", FLOATS)], |init| {
        let attrs = ["T", "U", "epsilon", "exponential_avg_factor", "data_format", "is_training"];
        let normalised = FusedOp::new(init, "FusedBatchNormV3", NORMALIZATION_INPUTS, copied(init, &attrs)?)?;
        chain(init, normalised, ops_after_normalization(init)?)
    }),
    KernelDef::of("_UnaryOpsComposition", &[("T", FLOATS)], |init| {
        let names = texts(init, "op_names")?;
        let ops = names.iter().map(|name| FusedOp::new(init, name, 1, copied(init, &["T"])?));
        let ops = ops.collect::<Result<Vec<_>>>()?;
        if ops.iter().any(|op| op.node.op.inputs.len() != 1) {
            device::invalid!("_UnaryOpsComposition of {names:?}: not all of them take one input");
        }
        let first = FusedOp::new(init, "Identity", 1, copied(init, &["T"])?)?;
        chain(init, first, ops)
    }),
    KernelDef::of("_FusedElementwise", &[("T", FLOATS)], elementwise::make),
];

/// Returns the kernel that runs `first` and then each op of `then`. Output 0 is the result of the last op; further
/// outputs are the further outputs of `first`.
fn chain(init: &KernelInit<'_>, first: FusedOp, then: Vec<FusedOp>) -> Result<Kernel> {
    check_inputs(init, first.inputs, &then)?;
    Kernel::sync(move |ctx| {
        run(ctx, &first, 0, Value::None)?;
        run_ops(ctx, &then, first.inputs)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run_op;
    use graph::{AttrList, AttrValue, DType, Tensor};

    fn names(names: &[&'static str]) -> AttrValue {
        AttrValue::List(AttrList::Str(names.iter().map(|n| n.as_bytes().into()).collect()))
    }

    fn matrix(rows: [[f32; 2]; 2]) -> Result<Tensor> {
        Ok(Tensor::try_from(rows)?)
    }

    #[test]
    fn matmul_with_bias_and_activation() -> Result<()> {
        let attrs = [
            ("T", DType::Float.into()),
            ("num_args", 1.into()),
            ("fused_ops", names(&["BiasAdd", "LeakyRelu"])),
            ("leakyrelu_alpha", 0.5f32.into()),
            ("transpose_b", true.into()),
        ];
        let inputs = [
            matrix([[1.0, 2.0], [3.0, 4.0]])?,
            matrix([[1.0, 0.0], [1.0, -2.0]])?,
            Tensor::try_from([1.0f32, -1.0])?,
        ];
        let out = run_op("_FusedMatMul", &inputs, &attrs)?;
        assert_eq!(out[0].values::<f32>()?, [2.0, -2.0, 4.0, -3.0]);
        let short = run_op("_FusedMatMul", &inputs, &[("T", DType::Float.into()), ("num_args", 1.into())]);
        assert_eq!(short.err().map(|e| e.code()), Some(graph::Code::InvalidArgument));
        let unknown = [attrs[0].clone(), attrs[1].clone(), ("fused_ops", names(&["BiasAdd", "Swish"]))];
        let refused = run_op("_FusedMatMul", &inputs, &unknown).err();
        assert_eq!(refused.as_ref().map(Error::code), Some(graph::Code::Unimplemented));
        assert!(refused.is_some_and(|e| e.to_string().contains("'Swish'")));
        Ok(())
    }

    #[test]
    fn unary_ops_run_in_order() -> Result<()> {
        let attrs = [("T", DType::Float.into()), ("op_names", names(&["Neg", "Exp"]))];
        let out = run_op("_UnaryOpsComposition", &[Tensor::try_from([0.0f32, 1.0])?], &attrs)?;
        assert_eq!(out[0].values::<f32>()?, [1.0, (-1.0f32).exp()]);
        let binary = [attrs[0].clone(), ("op_names", names(&["AddV2"]))];
        assert!(run_op("_UnaryOpsComposition", &[Tensor::try_from([0.0f32])?], &binary).is_err());
        Ok(())
    }
}
