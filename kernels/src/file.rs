//! Kernels that read, write and list files.

use crate::objects::io::{blocking, path_of};
use bytes::Bytes;
use checkpoint::store;
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::value::Value;
use device::{Error, Result};
use graph::{DType, PartialShape, Shape, Tensor};
use smallvec::{SmallVec, smallvec};
use std::fs;
use std::sync::OnceLock;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("ReadFile", &[], |_| {
        blocking(|ctx| {
            let path = path_of(scalar_string(ctx.input(0)?, "Input filename tensor")?);
            Ok(smallvec![Tensor::string(store::read(path)?).into()])
        })
    }),
    KernelDef::of("WriteFile", &[], |_| {
        blocking(|ctx| {
            let path = path_of(scalar_string(ctx.input(0)?, "Input filename tensor")?);
            let contents = scalar_string(ctx.input(1)?, "Contents tensor")?;
            if !store::is_local(&path) {
                store::write(&path, contents)?;
                return Ok(SmallVec::new());
            }
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(|e| checkpoint::Error::file(folder, &e))?;
            }
            fs::write(&path, contents).map_err(|e| checkpoint::Error::file(&path, &e))?;
            Ok(SmallVec::new())
        })
    }),
    KernelDef::of("ImmutableConst", &[], immutable),
    KernelDef::of("MatchingFiles", &[], |_| {
        blocking(|ctx| {
            let patterns = ctx.input(0)?;
            if patterns.shape().rank() > 1 {
                device::invalid!(
                    "Input patterns tensor must be scalar or vector, but had shape: {}",
                    patterns.shape()
                );
            }
            let mut paths = Vec::new();
            for pattern in patterns.as_strings()? {
                paths.append(&mut checkpoint::pattern::matching(&String::from_utf8_lossy(pattern))?);
            }
            paths.sort_unstable();
            let shape = Shape::new(&[paths.len()])?;
            Ok(smallvec![Tensor::strings(paths.into_iter().map(Bytes::from).collect(), shape)?.into()])
        })
    }),
    KernelDef::of("FileSystemSetConfiguration", &[], |_| {
        blocking(|ctx| {
            let scheme = scalar_string(ctx.input(0)?, "scheme")?.clone();
            let key = scalar_string(ctx.input(1)?, "key")?.clone();
            scalar_string(ctx.input(2)?, "value")?;
            Err(Error::unimplemented(format!(
                "the file system '{}' has no option {}: stores are configured when a server starts",
                String::from_utf8_lossy(&scheme),
                String::from_utf8_lossy(&key)
            )))
        })
    }),
];

/// Makes the kernel of ImmutableConst: a tensor whose elements are the bytes of a file, which is read in the first step.
fn immutable(init: &KernelInit<'_>) -> Result<Kernel> {
    let (dtype, path) = (init.attr::<DType>("dtype")?, init.attr::<Bytes>("memory_region_name")?);
    let shape = init.attr::<PartialShape>("shape")?;
    let Some(shape) = shape.as_shape() else { device::invalid!("the shape {shape} is not fully known") };
    let Some(size) = dtype.size() else {
        return Err(Error::unimplemented(format!(
            "Sorry, {dtype} is not currently supported for ImmutableConstOp."
        )));
    };
    let read = OnceLock::new();
    blocking(move |_| {
        if read.get().is_none() {
            let bytes = store::read(path_of(&path))?;
            let wanted = shape.num_elements().checked_mul(size).filter(|&wanted| wanted <= bytes.len());
            let Some(wanted) = wanted else {
                return Err(Error::internal(format!(
                    "Readonly memory region has wrong length ({}) when allocating a tensor of {dtype} and shape {shape}",
                    bytes.len()
                )));
            };
            let _ = read.set(Tensor::from_bytes(dtype, shape.clone(), &bytes[..wanted])?);
        }
        Ok(read.get().cloned().map(Value::Host).into_iter().collect())
    })
}

/// Returns the string in a scalar tensor; error messages call the tensor `name`.
pub(super) fn scalar_string<'a>(tensor: &'a Tensor, name: &str) -> Result<&'a Bytes> {
    match (tensor.shape().rank(), tensor.as_strings()?) {
        (0, [string]) => Ok(string),
        _ => {
            let verb = if name.ends_with("tensor") {
                "must be scalar, but had shape:"
            } else {
                "must be a scalar, got shape"
            };
            Err(Error::invalid(format!("{name} {verb} {}", tensor.shape())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TempDir, run_op};
    use graph::Code;

    #[test]
    fn written_files_are_read_and_listed() -> Result<()> {
        let dir = TempDir::new()?;
        let root = dir.path().display().to_string();
        let path = Tensor::from(&*format!("{root}/a/b/c"));
        run_op("WriteFile", &[path.clone(), "xyz".into()], &[])?;
        assert_eq!(run_op("ReadFile", &[path], &[])?, [Tensor::from("xyz")]);
        let patterns = [format!("{root}/a/b/*"), format!("{root}/a"), format!("{root}/none*")];
        let patterns = Tensor::strings(patterns.map(Bytes::from).to_vec(), Shape::new(&[3])?)?;
        let found = run_op("MatchingFiles", &[patterns], &[])?;
        assert_eq!(found[0].as_strings()?, [format!("{root}/a"), format!("{root}/a/b/c")]);
        let missing =
            run_op("ReadFile", &[Tensor::from("/none/x")], &[]).map_err(|e| (e.code(), e.to_string()));
        assert_eq!(missing, Err((Code::NotFound, "/none/x; No such file or directory".into())));
        let folder = run_op("ReadFile", &[Tensor::from(&*root)], &[]).map_err(|e| e.code());
        assert_eq!(folder, Err(Code::FailedPrecondition));
        assert!(run_op("ReadFile", &[Tensor::strings(vec!["a".into()], Shape::new(&[1])?)?], &[]).is_err());
        Ok(())
    }
}
