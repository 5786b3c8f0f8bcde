//! The cases for GPU kernels: each entry of the kernel table, with each of its dtypes, on each set of inputs.

use super::Fallible;
use super::cases::{Random, inputs};
use super::op_nodes::rows;
use device::kernel::KernelDef;
use graph::{Node, Tensor};

/// Boolean attributes that select another behaviour of the same kernel.
const FLAGS: &[&str] = &[
    "transpose_a",
    "transpose_b",
    "adj_x",
    "adj_y",
    "use_nesterov",
    "update_slots",
    "multiply_linear_by_lr",
    "include_batch_in_index",
    "binary_output",
    "lower",
    "adjoint",
    "range_given",
    "signed_input",
    "resize_if_index_out_of_bounds",
    "pad_to_max_output_size",
    "compute_v",
    "compute_uv",
    "full_matrices",
    "exclusive",
    "reverse",
];

/// Returns a copy of the node for each combination of values of its attributes in [`FLAGS`]. Random ops get fixed
/// seeds, because streams without seeds differ between runs.
fn variants(node: Node) -> Vec<Node> {
    let has = |name: &str| node.op.attrs.iter().any(|spec| spec.name == name);
    let node = if has("seed") {
        node.clone().with_attr("seed", 7i64).with_attr("seed2", 11i64)
    } else {
        node.clone()
    };
    FLAGS.iter().filter(|flag| has(flag)).fold(vec![node.clone()], |nodes, &flag| {
        nodes.iter().flat_map(|node| [false, true].map(|on| node.clone().with_attr(flag, on))).collect()
    })
}

/// A test case: one call of a kernel, with the node and its inputs.
pub(crate) struct Case {
    pub(crate) def: &'static KernelDef,
    pub(crate) node: Node,
    pub(crate) inputs: Vec<Tensor>,
}

impl Case {
    /// Returns a description of the case for error messages.
    fn name(&self) -> Fallible<String> {
        let shapes: Vec<String> = self.inputs.iter().map(|tensor| tensor.shape().to_string()).collect();
        Ok(format!("{:?} of {:?} {}", self.def, self.node.input_types()?, shapes.join(" ")))
    }
}

/// Returns the entries of the GPU's kernel table with their nodes. `ANABRANCH_GPU_SHARE`, such as `2/5`, selects the
/// second of five equal shares of the entries: sanitizers are slow, and a kernel that makes the GPU unusable for its
/// process then affects one share only. `ANABRANCH_GPU_OP` selects ops by a part of their name, for work on a single
/// kernel.
pub(crate) fn shared_rows() -> Fallible<Vec<(&'static KernelDef, Vec<Node>)>> {
    let (share, shares) = share()?;
    let asked = std::env::var(OP).unwrap_or_default();
    let rows = rows(cuda::table())?.into_iter().skip(share - 1).step_by(shares);
    Ok(rows.filter(|(def, _)| def.op.contains(&asked)).collect())
}

const SHARE: &str = "ANABRANCH_GPU_SHARE";
const OP: &str = "ANABRANCH_GPU_OP";

/// Returns whether the environment selects the whole kernel table.
pub(crate) fn is_whole() -> bool {
    [SHARE, OP].into_iter().all(|name| std::env::var_os(name).is_none())
}

/// Runs `check`, which returns descriptions of errors, on each case that the environment selects. Returns the number of
/// cases.
///
/// # Errors
/// All errors found.
pub(crate) fn for_each_case(check: impl Fn(&Case) -> Fallible<Vec<String>>) -> Fallible<usize> {
    let (mut count, mut wrong) = (0, Vec::new());
    for (def, nodes) in shared_rows()? {
        // The seed depends on the op only, so that its inputs do not change when cases of other ops are added.
        let mut random = Random(graph::fingerprint::hash64(def.op.as_bytes()));
        for node in nodes.into_iter().flat_map(variants) {
            for inputs in inputs(&node, &mut random)?.unwrap_or_default() {
                let case = Case { def, node: node.clone(), inputs };
                let found = check(&case).unwrap_or_else(|error| vec![error.to_string()]);
                for how in found {
                    wrong.push(format!("{}: {how}", case.name()?));
                }
                count += 1;
            }
        }
    }
    match wrong.len() {
        0 => Ok(count),
        some => Err(format!("{some} in {count} cases:\n{}", wrong.join("\n")).into()),
    }
}

/// Returns the number of the selected share and the number of shares; 1 and 1 if `ANABRANCH_GPU_SHARE` is not set.
fn share() -> Fallible<(usize, usize)> {
    let Ok(text) = std::env::var(SHARE) else { return Ok((1, 1)) };
    let numbers =
        text.split_once('/').and_then(|(share, shares)| Some((share.parse().ok()?, shares.parse().ok()?)));
    match numbers {
        Some((share, shares)) if (1..=shares).contains(&share) => Ok((share, shares)),
        _ => Err(format!("{SHARE} is {text}, no share such as 2/5").into()),
    }
}
