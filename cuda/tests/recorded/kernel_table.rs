//! The kernel table of GPUs: each definition makes a kernel, and agrees with the op table and the CPU's kernel
//! table.

use super::Fallible;
use super::op_nodes::rows;
use super::software::gpu::programs;
use device::kernel::ALL_ARGUMENTS;

#[test]
fn every_registration_makes_a_kernel_for_each_type() -> Fallible {
    let programs = programs()?;
    assert!(programs.len() > 500, "only {} programs", programs.len());
    Ok(())
}

#[test]
fn every_registration_names_arguments_and_types_of_its_op() -> Fallible {
    for (def, nodes) in rows(cuda::table())? {
        let op = nodes.first().ok_or("a row takes nothing")?.op;
        let memories = [def.host_memory, def.any_memory].into_iter().filter(|names| *names != ALL_ARGUMENTS);
        for argument in memories.flatten() {
            let is_there = op.inputs.iter().chain(op.outputs.iter()).any(|arg| arg.name == *argument);
            assert!(is_there, "{def:?} has no argument {argument}");
        }
        for (attr, types) in def.types {
            let spec =
                op.attrs.iter().find(|spec| spec.name == *attr).ok_or_else(|| format!("{def:?}: {attr}"))?;
            for &dtype in *types {
                spec.check(&if spec.is_list { vec![dtype].into() } else { dtype.into() })
                    .map_err(|e| format!("{def:?}: {e}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn every_registration_has_a_cpu_kernel() -> Fallible {
    for (def, nodes) in rows(cuda::table())? {
        // Collectives need several GPUs; their results are tested in `collectives.rs`.
        if def.op.starts_with("Nccl") {
            continue;
        }
        for node in nodes {
            let types: Vec<_> = node.input_types()?.iter().map(|port| port.dtype).collect();
            assert!(kernels::table().find(&node).is_some(), "{def:?} of {types:?} has no CPU kernel");
        }
    }
    Ok(())
}
