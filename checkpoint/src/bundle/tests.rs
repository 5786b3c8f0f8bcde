//! Tests of bundles against bytes written by TensorFlow, and against damaged files.

use super::*;
use crate::error::{Error, Result};
use crate::slice::SliceSpec;
use crate::testing::TempDir;
use bytes::Bytes;
use graph::tensor::{IteratorState, Optional, Variant};
use graph::{Code, DType, Shape, Tensor};
use std::fs;
use std::path::Path;

/// The index file of a bundle with `w` = [[0, 1, 2], [3, 4, 5]], `b` = 7, `s` = "ab", "", 200 times "x", and
/// the empty tensor `e`.
const INDEX: &[u8] = b"\x00\x00\x06\x08\x01\x1a\x02\x08\x01\x00\x01\rb\x08\t\x12\x00 \x18(\x085\xbb\xd7\x9f\x11\x00\
    \x01\x12e\x08\x01\x12\x06\x12\x00\x12\x02\x08\x03 \xf2\x015\xd8\xea\x82\xa2\x00\x01\x12s\x08\x07\x12\x04\x12\
    \x02\x08\x03  (\xd2\x015\x1bJ&4\x00\x01\x13w\x08\x01\x12\x08\x12\x02\x08\x02\x12\x02\x08\x03(\x185\xc0\xdb=\
    \x17\x00\x00\x00\x00\x01\x00\x00\x00\x00e\xb4\xcc\xcd\x00\x00\x00\x00\x01\x00\x00\x00\x00\xc0\xf2\xa1\xb0\x00\
    \x01\x02x\x00e\x00\x00\x00\x00\x01\x00\x00\x00\x008\x94\x05\xe3j\x08w\x0e\x00\x00\x00\x00\x00\x00\x00\x00\x00\
    \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00W\
    \xfb\x80\x8b$uG\xdb";

/// The index file of a bundle with `w` of shape [4, 3], stored in two slices, and `v`, stored as one slice
/// that covers the whole tensor.
const SLICED: &[u8] = b"\x00\x00\x06\x08\x01\x1a\x02\x08\x01\x00\n\x13\x00w\x00\x01\x01\x02\x80\x82\x80\x7f\x08\x01\
    \x12\x08\x12\x02\x08\x02\x12\x02\x08\x03(\x185\xc0\xdb=\x17\x06\x04\x15\x82\x82\x80\x7f\x08\x01\x12\x08\x12\
    \x02\x08\x02\x12\x02\x08\x03 \x18(\x185\xde\xd4V\x00\x00\x01\x15v\x08\x01\x12\x08\x12\x02\x08\x04\x12\x02\x08\
    \x03 0(05h\xc4j\x8d\x00\x01\x1ew\x08\x01\x12\x08\x12\x02\x08\x04\x12\x02\x08\x03:\x06\n\x02\x10\x02\n\x00:\x08\
    \n\x04\x08\x02\x10\x02\n\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x0e\xe2?\x96\x00\x00\x00\x00\x01\x00\x00\x00\
    \x00\xc0\xf2\xa1\xb0\x00\x01\x03x\x00\x88\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00n\xc2@\xb3\x8d\x01\x08\x9a\
    \x01\x0f\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
    \x00\x00\x00\x00\x00\x00\x00\x00\x00W\xfb\x80\x8b$uG\xdb";

fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    fs::read(&path).map_err(|e| Error::file(&path, &e))
}

fn put(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    fs::write(&path, bytes).map_err(|e| Error::file(&path, &e))
}

fn rows(range: std::ops::Range<u8>) -> Result<Tensor> {
    let values: Vec<f32> = range.map(f32::from).collect();
    Ok(Tensor::from_slice(&values, Shape::new(&[values.len() / 3, 3])?)?)
}

fn small() -> Result<Vec<(&'static [u8], Tensor)>> {
    let strings = vec![Bytes::from("ab"), Bytes::new(), Bytes::from(vec![b'x'; 200])];
    Ok(vec![
        (b"w", rows(0..6)?),
        (b"b", Tensor::from(7i64)),
        (b"s", Tensor::strings(strings, Shape::new(&[3])?)?),
        (b"e", Tensor::zeros(DType::Float, Shape::new(&[0, 3])?)?),
    ])
}

fn write(prefix: &Path, tensors: &[(&[u8], Tensor)]) -> Result<()> {
    let mut writer = Writer::create(prefix)?;
    for (name, tensor) in tensors {
        writer.add(name, tensor)?;
    }
    writer.finish()
}

fn write_slices(prefix: &Path) -> Result<()> {
    let mut writer = Writer::create(prefix)?;
    writer.add_slice(b"w", &SliceSpec::parse("4 3 0,2:-")?, &rows(0..6)?)?;
    writer.add_slice(b"w", &SliceSpec::parse("4 3 2,2:-")?, &rows(10..16)?)?;
    let ones = Tensor::full(1f32, Shape::new(&[4, 3])?)?;
    writer.add_slice(b"v", &SliceSpec::parse("4 3 -:-")?, &ones)?;
    writer.finish()
}

#[test]
fn files_are_identical_to_tensorflows() -> Result<()> {
    let dir = TempDir::new()?;
    let prefix = dir.path().join("a");
    write(&prefix, &small()?)?;
    assert_eq!(read(index_file(&prefix))?, INDEX);
    let data = read(data_file(&prefix, 0, 1))?;
    assert_eq!(data[32..41], *b"\x02\x00\xc8\x01[x\x89ra");
    assert_eq!(dir.names(), ["a.data-00000-of-00001", "a.index"]);
    write_slices(&prefix)?;
    assert_eq!(read(index_file(&prefix))?, SLICED);
    Ok(())
}

#[test]
fn written_tensors_are_read_back() -> Result<()> {
    let dir = TempDir::new()?;
    let prefix = dir.path().join("a");
    let mut all = small()?;
    for &dtype in DType::ALL.iter().filter(|d| d.size().is_some()) {
        let mut tensor = Tensor::unspecified(dtype, Shape::new(&[2, 5])?)?;
        tensor.bytes_mut()?.iter_mut().enumerate().for_each(|(i, b)| *b = (i % 2) as u8);
        all.push((dtype.name().as_bytes(), tensor));
    }
    write(&prefix, &all)?;
    let mut reader = Reader::open(&prefix)?;
    for (name, tensor) in &all {
        assert_eq!(reader.lookup(name)?, (tensor.dtype(), tensor.shape()));
        assert_eq!(reader.read(name)?, *tensor);
    }
    assert_eq!(reader.tensors().count(), all.len());
    let missing = reader.read(b"none").map_err(|e| (e.code(), e.to_string()));
    assert_eq!(missing, Err((Code::NotFound, "Key none not found in checkpoint".into())));
    Ok(())
}

#[test]
fn any_slice_is_read_from_stored_slices() -> Result<()> {
    let dir = TempDir::new()?;
    let prefix = dir.path().join("p");
    write_slices(&prefix)?;
    let mut reader = Reader::open(&prefix)?;
    let whole = [0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
    assert_eq!(reader.read(b"w")?.values::<f32>()?, whole);
    let mut part = |spec: &str| reader.read_slice(b"w", &SliceSpec::parse(spec)?);
    assert_eq!(part("4 3 1,2:0,2")?.values::<f32>()?, [3.0, 4.0, 10.0, 11.0]);
    assert_eq!(part("4 3 2,2:-")?.values::<f32>()?, &whole[6..]);
    assert_eq!(part("4 3 -:2,1")?.values::<f32>()?, [2.0, 5.0, 12.0, 15.0]);
    let wrong = part("4 5 1,2:0,2").map_err(|e| e.to_string());
    let text = "tensor_name = w; shape in shape_and_slice spec [4,5] does not match the shape stored in checkpoint: \
                [4,3]";
    assert_eq!(wrong, Err(text.to_owned()));
    Ok(())
}

#[test]
fn missing_and_duplicate_slices_are_refused() -> Result<()> {
    let dir = TempDir::new()?;
    let mut writer = Writer::create(dir.path().join("p"))?;
    let spec = SliceSpec::parse("4 3 0,2:-")?;
    writer.add_slice(b"w", &spec, &rows(0..6)?)?;
    assert!(writer.add_slice(b"w", &spec, &rows(0..6)?).is_err());
    assert!(writer.add(b"w", &rows(0..6)?).is_err());
    assert!(writer.add_slice(b"w", &SliceSpec::parse("5 3 2,2:-")?, &rows(0..6)?).is_err());
    writer.finish()?;
    let holes = Reader::open(dir.path().join("p"))?.read(b"w").map_err(|e| e.code());
    assert_eq!(holes, Err(Code::InvalidArgument));
    Ok(())
}

#[test]
fn a_dropped_writer_leaves_no_files() -> Result<()> {
    let dir = TempDir::new()?;
    let mut writer = Writer::create(dir.path().join("a"))?;
    writer.add(b"w", &rows(0..6)?)?;
    assert!(writer.add(b"w", &rows(0..6)?).is_err());
    drop(writer);
    assert_eq!(dir.names(), <[String; 0]>::default());
    let missing = Writer::create(dir.path().join("x/y/z")).map(|_| ()).map_err(|e| e.code());
    assert_eq!(missing, Err(Code::NotFound));
    Ok(())
}

/// Changes every byte of the index file and of the data file, and truncates each file at every length.
#[test]
fn damage_at_any_byte_is_an_error_that_names_the_file() -> Result<()> {
    let dir = TempDir::new()?;
    let prefix = dir.path().join("a");
    write(&prefix, &small()?)?;
    let read_all = || {
        let mut reader = Reader::open(&prefix)?;
        small()?.iter().try_for_each(|(name, _)| reader.read(name).map(|_| ()))
    };
    read_all()?;
    for path in [index_file(&prefix), data_file(&prefix, 0, 1)] {
        let whole = read(&path)?;
        let mut damaged: Vec<Vec<u8>> = (0..whole.len()).map(|cut| whole[..cut].to_vec()).collect();
        for at in 0..whole.len() {
            for bits in [0x01, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= bits;
                damaged.push(bytes);
            }
        }
        for bytes in damaged {
            put(&path, &bytes)?;
            let error = read_all().map_err(|e| (e.code(), e.to_string()));
            let Err((Code::DataLoss, text)) = error else {
                panic!("{error:?} for {bytes:?}");
            };
            assert!(text.starts_with(&path.display().to_string()), "{text}");
        }
        put(&path, &whole)?;
    }
    fs::remove_file(data_file(&prefix, 0, 1)).map_err(|e| Error::file(&prefix, &e))?;
    assert_eq!(read_all().map_err(|e| e.code()), Err(Code::NotFound));
    Ok(())
}

#[test]
fn merging_leaves_one_bundle_and_deletes_the_inputs() -> Result<()> {
    let dir = TempDir::new()?;
    let folder = dir.path().join("temp");
    let parts = [folder.join("a"), folder.join("b")];
    let ones = Tensor::from_slice(&[1f64, 1.0], Shape::new(&[2])?)?;
    for (i, part) in parts.iter().enumerate() {
        let mut writer = Writer::create(part)?;
        writer.add([&b"p"[..], b"q"][i], &ones)?;
        writer.add_slice(b"w", &SliceSpec::parse(["4 3 0,2:-", "4 3 2,2:-"][i])?, &rows(0..6)?)?;
        writer.finish()?;
    }
    let options = MergeOptions { delete_old_dirs: true, allow_missing_files: false };
    let missing = merge(&[parts[0].clone(), folder.join("c")], dir.path().join("all"), options);
    assert_eq!(missing.map_err(|e| e.code()), Err(Code::InvalidArgument));
    let twice = merge(&[parts[0].clone(), parts[0].clone()], dir.path().join("all"), options);
    assert_eq!(twice.map_err(|e| e.code()), Err(Code::InvalidArgument));
    merge(&parts, dir.path().join("all"), options)?;
    assert_eq!(dir.names(), ["all.data-00000-of-00002", "all.data-00001-of-00002", "all.index"]);
    let mut reader = Reader::open(dir.path().join("all"))?;
    assert_eq!(reader.read(b"q")?, ones);
    assert_eq!(reader.read(b"w")?.values::<f32>()?[4..8], [4.0, 5.0, 0.0, 1.0]);
    Ok(())
}

#[test]
fn states_of_iterators_are_read_back_and_damage_is_found() -> Result<()> {
    let dir = TempDir::new()?;
    let prefix = dir.path().join("a");
    let state = |length: usize| IteratorState(Bytes::from(vec![7; length]));
    let variants = [0, 3, 300].map(|length| Variant::new(state(length)));
    write(&prefix, &[(b"i", Tensor::variants(variants.to_vec(), Shape::new(&[3])?)?)])?;
    let restored = Reader::open(&prefix)?.read(b"i")?;
    let lengths = restored.as_variants()?.iter().map(|v| v.get::<IteratorState>().map(|state| state.0.len()));
    assert_eq!(lengths.collect::<Vec<_>>(), [Some(0), Some(3), Some(300)]);
    let path = data_file(&prefix, 0, 1);
    let whole = read(&path)?;
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        put(&path, &damaged)?;
        let refused = Reader::open(&prefix)?.read(b"i").map(|_| ()).map_err(|e| e.code());
        assert_eq!(refused, Err(Code::DataLoss), "{at}");
    }
    let other = Tensor::variant(Optional::<Tensor>::NONE);
    let refused = write(&prefix, &[(b"o", other)]).map_err(|e| (e.code(), e.to_string()));
    let text = "a variant that holds tensorflow::data::Optional in a checkpoint";
    assert!(
        refused.as_ref().is_err_and(|(code, t)| *code == Code::Unimplemented && t.contains(text)),
        "{refused:?}"
    );
    Ok(())
}
