//! Inputs for ops on variables: the value of each variable before the op runs, and all other inputs.

use super::Fallible;
use super::cases::{ONE, Random};
use graph::{DType, Node, Shape, Tensor};
use kernels::testing::run_op;

/// Returns sets of inputs for a node that takes variables, in the form of [`inputs`](super::cases::inputs).
pub(super) fn inputs(node: &Node, random: &mut Random) -> Fallible<Vec<Vec<Tensor>>> {
    let t = element(node);
    let index = node.attr::<DType>("Tindices").unwrap_or(DType::Int64);
    match node.op.name() {
        "ResourceGather" => {
            let cases: [(&[usize], &[usize]); 4] =
                [(&[5], &[3]), (&[5, 4], &[2, 3]), (&[5, 4], &[0]), (&[5, 2, 3], &[])];
            let case = |(dims, at): (&[usize], &[usize])| {
                Ok(vec![random.tensor(t, dims)?, random.indices(index, at, dims[0] as u64)?])
            };
            cases.into_iter().map(case).collect()
        }
        name if name.starts_with("Stateful") || name.starts_with("Rng") => generated(node),
        // Handles of tensor arrays and stacks are not variables; `loops` in the executor's tests covers these ops.
        name if name.starts_with("TensorArray") || name.starts_with("Stack") => Ok(vec![]),
        name if name.contains("StridedSliceAssign") => {
            let index = node.attr::<DType>("Index")?;
            let at = |values: [i64; 2]| cast(&Tensor::vector(&values)?, index);
            let (begin, end, strides) = (at([1, 0])?, at([6, 3])?, at([2, 1])?);
            Ok(vec![vec![random.tensor(t, &[6, 5])?, begin, end, strides, random.tensor(t, &[3, 3])?]])
        }
        name if name.contains("ScatterNd") => {
            let at = Tensor::from_slice(&[3i64, 0, 4], Shape::new(&[3, 1])?)?;
            Ok(vec![vec![random.tensor(t, &[5, 2])?, cast(&at, index)?, random.tensor(t, &[3, 2])?]])
        }
        // The divisors are fixed numbers, so that no integer is divided by zero.
        name if name.ends_with("ScatterDiv") && t == DType::Int64 => {
            let rows = cast(&Tensor::vector(&[3i64, 0, 4])?, index)?;
            Ok(vec![vec![random.tensor(t, &[5])?, rows, Tensor::vector(&[2i64, -3, 1])?]])
        }
        name if name.contains("Scatter") => scattered(t, index, random),
        name if name.contains("SparseApply") => {
            ROWS.iter().map(|[table, rows]| row_step(node, t, [table, rows], random)).collect()
        }
        name if name.contains("Apply") => ONE.iter().map(|dims| step(node, t, dims, random)).collect(),
        _ => {
            let count = node.input_types()?.len();
            let values = |dims: &&[usize]| (0..count).map(|_| random.tensor(t, dims)).collect();
            ONE.iter().map(values).collect()
        }
    }
}

/// Returns the dtype of the node's variable.
fn element(node: &Node) -> DType {
    let named = ["T", "dtype"].into_iter().find_map(|name| node.attr::<DType>(name).ok());
    named.unwrap_or(DType::Float)
}

/// Returns inputs of ops on random generators: the generator's state, in one case with a counter that is about to
/// overflow, and the other arguments.
fn generated(node: &Node) -> Fallible<Vec<Vec<Tensor>>> {
    let states: [&[i64]; 2] = [&[-7, 4, 5], &[3, 8, 9, 10]];
    let mut all = Vec::new();
    for (state, size) in states.into_iter().zip([1001i64, 0]) {
        let mut set = vec![Tensor::vector(state)?];
        for arg in &node.op.inputs[1..] {
            let value = match arg.name {
                "shape" => Tensor::vector(&[size])?,
                "minval" => Tensor::scalar(-5i64),
                "maxval" => Tensor::scalar(1000i64),
                "delta" => Tensor::scalar(7i64),
                _ => Tensor::scalar(1i64),
            };
            set.push(value);
        }
        for (tensor, port) in set.iter_mut().zip(node.input_types()?).skip(1) {
            *tensor = cast(tensor, port.dtype)?;
        }
        all.push(set);
    }
    Ok(all)
}

/// Returns scatter inputs. Row indices do not repeat, because the order of updates of one row is not fixed; in one case
/// a scalar updates all indexed rows.
fn scattered(t: DType, index: DType, random: &mut Random) -> Fallible<Vec<Vec<Tensor>>> {
    let rows = cast(&Tensor::vector(&[3i64, 0, 4])?, index)?;
    Ok(vec![
        vec![random.tensor(t, &[5])?, rows.clone(), random.tensor(t, &[3])?],
        vec![random.tensor(t, &[5, 400])?, rows.clone(), random.tensor(t, &[3, 400])?],
        vec![random.tensor(t, &[5, 2, 3])?, rows, random.tensor(t, &[])?],
        vec![random.tensor(t, &[5, 2])?, random.indices(index, &[0], 5)?, random.tensor(t, &[0, 2])?],
    ])
}

/// Pairs of shapes: a table, and the gradient of three rows of the table.
const ROWS: &[[&[usize]; 2]] = &[[&[5], &[3]], [&[5, 400], &[3, 400]], [&[5, 2, 3], &[3, 2, 3]]];

/// Returns inputs of a sparse update op: a table with its optimizer slots, scalars, and a gradient of distinct rows.
fn row_step(
    node: &Node,
    t: DType,
    [table, rows]: [&[usize]; 2],
    random: &mut Random,
) -> Fallible<Vec<Tensor>> {
    let mut inputs = step(node, t, table, random)?;
    for (arg, input) in node.op.inputs.iter().zip(&mut inputs) {
        match arg.name {
            "grad" => *input = random.tensor(t, rows)?,
            "indices" => *input = cast(&Tensor::vector(&[3i64, 0, 4])?, node.attr("Tindices")?)?,
            _ => {}
        }
    }
    Ok(inputs)
}

/// Returns inputs of a dense update op: a variable with its optimizer slots, scalars, and a gradient.
fn step(node: &Node, t: DType, dims: &[usize], random: &mut Random) -> Fallible<Vec<Tensor>> {
    let ports = node.input_types()?;
    let input = |(i, (arg, is_variable)): (usize, (&str, bool))| match arg {
        _ if i == 0 => random.tensor(t, dims),
        // All slots get values from 0.1 to 0.9, because some are sums of squares, which must be positive.
        _ if is_variable => share(random, t, dims),
        "grad" | "delta" => random.tensor(t, dims),
        "global_step" => Ok(Tensor::scalar(3i64)),
        "lr_power" => cast(&Tensor::scalar(-0.5f64), t),
        _ => share(random, t, &[]),
    };
    let args = node.op.inputs.iter().map(|arg| arg.name);
    args.zip(ports.iter().map(|port| port.is_ref_or_resource())).enumerate().map(input).collect()
}

/// Returns random numbers from 0.1 to 0.9.
fn share(random: &mut Random, t: DType, dims: &[usize]) -> Fallible<Tensor> {
    let wide = random.tensor(DType::Double, dims)?;
    let shares: Vec<f64> = wide.values::<f64>()?.iter().map(|value| 0.5 + value * 0.4 / 3.0).collect();
    cast(&Tensor::from_slice(&shares, wide.shape().clone())?, t)
}

fn cast(tensor: &Tensor, dtype: DType) -> Fallible<Tensor> {
    let attrs = [("SrcT", tensor.dtype().into()), ("DstT", dtype.into())];
    Ok(run_op("Cast", std::slice::from_ref(tensor), &attrs)?.remove(0))
}
