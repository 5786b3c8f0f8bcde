//! `anabranch ckpt convert`: converts a checkpoint to a single file, or such a file to a checkpoint. The
//! extension of the file, `.safetensors` or `.npz`, selects its format.

use super::{Fallible, archive, names, open, safetensors, shown};
use checkpoint::bundle::Writer;
use checkpoint::{npy, store};
use graph::Tensor;
use std::path::Path;

/// Tensors with their names.
pub(super) type Tensors = Vec<(String, Tensor)>;

pub(super) fn run(from: &Path, to: &Path) -> Fallible {
    let tensors = match extension(from) {
        "safetensors" => safetensors::decode(&store::read(from)?)?,
        "npz" => {
            let arrays = archive::decode(&store::read(from)?)?.into_iter();
            let array = |(name, bytes): (String, Vec<u8>)| {
                let name = name.strip_suffix(".npy").unwrap_or(&name).to_owned();
                let tensor = npy::decode(&bytes).map_err(|e| format!("{name}: {e}"))?;
                Ok((name, tensor))
            };
            arrays.map(array).collect::<Fallible<_>>()?
        }
        _ => {
            let mut reader = open(from)?;
            let mut tensors = Tensors::new();
            for name in names(&reader) {
                tensors.push((shown(&name), reader.read(&name)?));
            }
            tensors
        }
    };
    match extension(to) {
        "safetensors" => Ok(store::write(to, &safetensors::encode(&tensors)?)?),
        "npz" => {
            let array = |(name, tensor): &(String, Tensor)| {
                let bytes = npy::encode(tensor).map_err(|e| format!("{name}: {e}"))?;
                Ok((format!("{name}.npy"), bytes.to_vec()))
            };
            let arrays = tensors.iter().map(array).collect::<Fallible<Vec<_>>>()?;
            Ok(store::write(to, &archive::encode(&arrays)?)?)
        }
        _ => {
            let mut writer = Writer::create(to)?;
            for (name, tensor) in &tensors {
                writer.add(name.as_bytes(), tensor)?;
            }
            Ok(writer.finish()?)
        }
    }
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|e| e.to_str()).unwrap_or_default()
}
