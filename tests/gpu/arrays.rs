//! Tensor arrays, stacks, tensor lists, and splits of tensors into many parts: a step gives the same results as on
//! the CPU.

use super::Fallible;
use super::cases::Random;
use super::comparison::{cpu, difference};
use super::partition::Partition;
use device::gpu_options::GpuOptions;
use graph::{DType, Tensor};

const ARRAYS: &str = "
    x <- float
    size = Const[dtype=int32, value=int32<>{3}]
    zero = Const[dtype=int32, value=int32<>{0}]
    one = Const[dtype=int32, value=int32<>{1}]
    all = Const[dtype=int32, value=int32<3>{0, 1, 2}]
    some = Const[dtype=int32, value=int32<2>{2, 0}]
    lengths = Const[dtype=int64, value=int64<3>{2, 0, 1}]
    rows = TensorArrayV3[dtype=float, clear_after_read=false](size)
    filled = TensorArrayScatterV3[T=float](rows, all, x, rows:1)
    read = TensorArrayReadV3[dtype=float](rows, one, filled)
    gathered = TensorArrayGatherV3[dtype=float](rows, some, filled)
    joined = TensorArrayConcatV3[dtype=float](rows, filled)
    slopes = TensorArrayGradV3[source=\"back\"](rows, filled)
    each = TensorArrayScatterV3[T=float](slopes, all, x, slopes:1)
    twice = TensorArrayWriteV3[T=float](slopes, one, read, each)
    summed = TensorArrayGatherV3[dtype=float](slopes, all, twice)
    parts = TensorArrayV3[dtype=float, infer_shape=false](size)
    cut = TensorArraySplitV3[T=float](parts, x, lengths, parts:1)
    first = TensorArrayReadV3[dtype=float](parts, zero, cut)
    stack = StackV2[elem_type=float](size)
    below = StackPushV2[T=float](stack, x)
    above = StackPushV2[T=float](stack, read, ^below)
    popped = StackPopV2[elem_type=float](stack, ^above)
    again = StackPopV2[elem_type=float](stack, ^popped)
    read -> float
    gathered -> float
    joined -> float
    summed -> float
    first -> float
    popped -> float
    again -> float
";

const NAMES: [&str; 7] = ["read", "gathered", "joined", "summed", "first", "popped", "again"];

/// The text of a graph that applies tensor-list ops to lists on the device, and sends a list and several tensors.
const LISTS: &str = "
    x <- float
    zero = Const[dtype=int32, value=int32<>{0}]
    one = Const[dtype=int32, value=int32<>{1}]
    any = Const[dtype=int32, value=int32<>{-1}]
    some = Const[dtype=int32, value=int32<2>{2, 0}]
    row = Const[dtype=int32, value=int32<1>{5}]
    lengths = Const[dtype=int64, value=int64<3>{2, 0, 1}]
    none = Const[dtype=int64, value=int64<0>{}]
    rows = TensorListFromTensor[element_dtype=float, shape_type=int32](x, row)
    read = TensorListGetItem[element_dtype=float](rows, one, row)
    doubled = TensorListSetItem[element_dtype=float](rows, zero, read)
    both = AddN[T=variant, N=2](rows, doubled)
    summed = TensorListStack[element_dtype=float](both, row)
    gathered = TensorListGather[element_dtype=float](both, some, row)
    slopes = ZerosLike[T=variant](both)
    pushed = TensorListPushBack[element_dtype=float](slopes, read)
    zeros = TensorListStack[element_dtype=float](pushed, row)
    popped = TensorListPopBack[element_dtype=float](pushed, row)
    cut = TensorListSplit[element_dtype=float, shape_type=int32](x, any, lengths)
    joined = TensorListConcatV2[element_dtype=float, shape_type=int32](cut, any, none)
    some/rows = TensorListScatterV2[element_dtype=float, shape_type=int32](gathered, some, row, any)
    list = Identity[T=variant](some/rows)
    list -> variant
    maybe = OptionalFromValue[Toutput_types=[float]](summed)
    kept = OptionalGetValue[output_types=[float], output_shapes=[<?,5>]](maybe)
    read -> float
    summed -> float
    gathered -> float
    zeros -> float
    popped:1 -> float
    joined -> float
    kept -> float
";

/// Checks that a step gives the same results on a GPU, in poisoned memory, as on the CPU.
fn agrees_with_the_cpu(text: &str, x: &Tensor, names: &[&str]) -> Fallible {
    let Some(device) = crate::first_gpu(&GpuOptions { poison: true, ..GpuOptions::default() })? else {
        return Ok(());
    };
    let run = |device| Partition::of_text(text, device)?.step(&[("x", x.clone())], names);
    for (name, (actual, expected)) in names.iter().zip(run(&device)?.iter().zip(run(&cpu())?)) {
        if let Some(how) = difference(actual, &expected)? {
            return Err(format!("{name}: {how}").into());
        }
    }
    Ok(())
}

/// A tensor is split into more parts than one kernel launch moves. The row length is a multiple of the number of
/// elements that a thread loads at once, and then is not.
#[test]
fn tensors_of_many_parts_are_split_and_concatenated_as_on_the_cpu() -> Fallible {
    const COUNT: usize = 35;
    for size in [4, 5] {
        let slices: Vec<String> = (0..COUNT).map(|i| format!("cut:{i}")).collect();
        let reversed: Vec<&str> = slices.iter().rev().map(String::as_str).collect();
        let text = format!(
            "
            x <- float
            axis = Const[dtype=int32, value=int32<>{{1}}]
            cut = Unpack[T=float, num={COUNT}, axis=1](x)
            joined = ConcatV2[T=float, N={COUNT}]({}, axis)
            joined -> float
            ",
            reversed.join(", ")
        );
        let lines: String = text.lines().map(|line| line.trim().to_owned() + "\n").collect();
        let x = Random(6).tensor(DType::Float, &[3, COUNT, size])?;
        agrees_with_the_cpu(lines.trim_start(), &x, &["joined"])?;
    }
    Ok(())
}

#[test]
fn tensor_arrays_and_stacks_agree_with_the_cpu() -> Fallible {
    agrees_with_the_cpu(ARRAYS, &Random(5).tensor(DType::Float, &[3, 5])?, &NAMES)
}

#[test]
fn tensor_lists_agree_with_the_cpu() -> Fallible {
    let names = ["list", "read", "summed", "gathered", "zeros", "popped_1", "joined", "kept"];
    agrees_with_the_cpu(LISTS, &Random(8).tensor(DType::Float, &[3, 5])?, &names)
}
