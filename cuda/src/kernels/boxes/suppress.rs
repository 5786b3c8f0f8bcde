//! Non-maximum suppression. How many boxes are left is known when it has been done: unless the answer is padded, it waits
//! for the GPU, no thread does.

use crate::engine::{Arguments, Function, Lane, Source};
use crate::kernels::support::{function, read, type_name, write};
use device::kernel::{AsyncContext, Kernel, KernelDef, KernelInit};
use device::value::Value;
use device::{Device, DeviceTensor};
use device::{Error, Result};
use graph::{DType, Node, Shape};
use kernels::boxes::suppress::{Rules, among};
use smallvec::SmallVec;
use std::sync::Arc;

static SOURCE: Source = Source { file: "suppress.cu", text: include_str!("../suppress.cu") };

const SCORES: &[(&str, &[DType])] = &[("T", &[DType::Float, DType::Half])];

pub(in crate::kernels) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["max_output_size", "iou_threshold"],
        ..KernelDef::of("NonMaxSuppressionV2", SCORES, |init| suppress(init, false))
    },
    KernelDef {
        host_memory: &["max_output_size", "iou_threshold", "score_threshold"],
        ..KernelDef::of("NonMaxSuppressionV3", SCORES, |init| suppress(init, false))
    },
    KernelDef {
        host_memory: &["max_output_size", "iou_threshold", "score_threshold"],
        ..KernelDef::of("NonMaxSuppressionV4", SCORES, |i| suppress(i, i.attr("pad_to_max_output_size")?))
    },
    KernelDef {
        host_memory: &["max_output_size", "iou_threshold", "score_threshold", "soft_nms_sigma"],
        ..KernelDef::of("NonMaxSuppressionV5", SCORES, |i| suppress(i, i.attr("pad_to_max_output_size")?))
    },
];

/// What is chosen: numbers of boxes and their scores, both as long as there may be any, and how many there are.
struct Chosen {
    numbers: DeviceTensor,
    scores: DeviceTensor,
    count: DeviceTensor,
}

fn suppress(init: &KernelInit<'_>, is_padded: bool) -> Result<Kernel> {
    let dtype = init.input_type(1);
    let outputs = init.outputs.len();
    let choose = function(init, &SOURCE, format!("choose<{}>", type_name(dtype)?))?;
    Kernel::asynchronous(move |ctx| {
        let chosen = enqueue(&ctx, &choose, dtype, is_padded);
        let AsyncContext { node, device, done, .. } = ctx;
        match chosen {
            Ok(chosen) if is_padded || chosen.numbers.shape.num_elements() == 0 => {
                done(Ok(chosen.into_outputs(outputs)));
            }
            Ok(chosen) => {
                let (count, on) = (chosen.count.clone(), device.clone());
                let answer = move |count: Result<graph::Tensor>| {
                    let count: i32 = count?.item()?;
                    Ok(chosen.first(&*on, &node, count as usize)?.into_outputs(outputs))
                };
                device.processor().download(count, Box::new(move |count| done(answer(count))));
            }
            Err(error) => done(Err(error)),
        }
    })
}

fn enqueue(ctx: &AsyncContext, choose: &Function, dtype: DType, is_padded: bool) -> Result<Chosen> {
    let [boxes, scores] = [device_input(ctx, 0)?, device_input(ctx, 1)?];
    let given = (2..ctx.inputs.len()).map(|i| ctx.input(i)).collect::<Result<SmallVec<[_; 4]>>>()?;
    let rules = Rules::of(dtype, &given)?;
    let n = among(&boxes.shape, &scores.shape)?;
    let length = if is_padded { rules.most } else { rules.most.min(n) };
    let lane = Lane::of(&*ctx.device)?;
    let allocate = |dtype, dims: &[usize]| lane.allocate(&ctx.node.name, dtype, Shape::new(dims)?);
    let (left, known) = (allocate(DType::Float, &[n])?, allocate(DType::Int32, &[n])?);
    let numbers = allocate(DType::Int32, &[length])?;
    let scores_left = allocate(dtype, &[length])?;
    let count = allocate(DType::Int32, &[])?;
    let reals = [rules.overlap, rules.score, rules.scale()].map(|value| f64::from(value).to_bits() as i64);
    let arguments = Arguments::new()
        .address(read(boxes)?)
        .address(read(scores)?)
        .address(write(&left)?)
        .address(write(&known)?)
        .address(write(&numbers)?)
        .address(write(&scores_left)?)
        .address(write(&count)?)
        .count(n)
        .count(length)
        .structure([rules.most as i64].into_iter().chain(reals));
    lane.launch_blocks(choose, 1, &arguments)?;
    Ok(Chosen { numbers, scores: scores_left, count })
}

fn device_input(ctx: &AsyncContext, i: usize) -> Result<&DeviceTensor> {
    match ctx.inputs.get(i) {
        Some(Value::Device(tensor)) => Ok(tensor),
        other => Err(Error::internal(format!("{other:?} is not in the GPU's memory"))),
    }
}

impl Chosen {
    /// The first so many.
    fn first(self, device: &Device, node: &Arc<Node>, count: usize) -> Result<Chosen> {
        let lane = Lane::of(device)?;
        let first = |of: DeviceTensor| {
            if of.shape.num_elements() == count {
                return Ok(of);
            }
            let out = lane.allocate(&node.name, of.dtype, Shape::new(&[count])?)?;
            lane.copy(&out, &of)?;
            Ok::<_, Error>(out)
        };
        Ok(Chosen { numbers: first(self.numbers)?, scores: first(self.scores)?, count: self.count })
    }

    /// Numbers alone, or with their count, or with scores between them.
    fn into_outputs(self, outputs: usize) -> SmallVec<[Value; 4]> {
        let Chosen { numbers, scores, count } = self;
        let all = [(1, numbers), (3, scores), (2, count)];
        all.into_iter().filter(|(least, _)| outputs >= *least).map(|(_, tensor)| tensor.into()).collect()
    }
}
