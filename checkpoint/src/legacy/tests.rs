//! Tests of V1 files against bytes written by TensorFlow.

use super::*;
use crate::error::{Error, Result};
use crate::slice::SliceSpec;
use crate::testing::TempDir;
use bytes::Bytes;
use graph::{Code, DType, Shape, Tensor};
use std::fs;

/// The file of `w` = [[0, 1, 2], [3, 4, 5]], `b` = 7, `s` = "ab", "".
const PLAIN: &[u8] = b"\x00\x009\n7\n\t\n\x01b\x12\x00\x18\t\"\x00\n\x0f\n\x01s\x12\x04\x12\x02\x08\x02\x18\x07\"\
    \x02\n\x00\n\x15\n\x01w\x12\x08\x12\x02\x08\x02\x12\x02\x08\x03\x18\x01\"\x04\n\x00\n\x00\x12\x02\x08\x01\x00\
    \x05\x0c\x00b\x00\x01\x00\x12\n\n\x01b\x12\x00\x1a\x03R\x01\x07\x01\x07\x11s\x00\x01\x01\x01\x80\x7f\x12\x0f\n\
    \x01s\x12\x02\n\x00\x1a\x06B\x02abB\x00\x01\t'w\x00\x01\x01\x02\x80\x7f\x80\x7f\x12%\n\x01w\x12\x04\n\x00\n\
    \x00\x1a\x1a*\x18\x00\x00\x00\x00\x00\x00\x80?\x00\x00\x00@\x00\x00@@\x00\x00\x80@\x00\x00\xa0@\x00\x00\x00\
    \x00\x01\x00\x00\x00\x00\xbb\x16\xd9Y\x00\x00\x00\x00\x01\x00\x00\x00\x00\xc0\xf2\xa1\xb0\x00\x01\x03\x01\x00\
    \xa6\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\xf4`\xc3i\xab\x01\x08\xb8\x01\x0f\x00\x00\x00\x00\x00\x00\x00\x00\
    \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00W\xfb\
    \x80\x8b$uG\xdb";

fn items() -> Result<Vec<(&'static [u8], Tensor)>> {
    Ok(vec![
        (b"w", Tensor::try_from([[0f32, 1.0, 2.0], [3.0, 4.0, 5.0]])?),
        (b"b", Tensor::from(7i64)),
        (b"s", Tensor::strings(vec![Bytes::from("ab"), Bytes::new()], Shape::new(&[2])?)?),
    ])
}

fn put(path: &std::path::Path, tensors: &[(&[u8], Tensor)]) -> Result<()> {
    let items: Vec<Item<'_>> =
        tensors.iter().map(|(name, tensor)| Item { name, spec: None, tensor }).collect();
    write(path, &items)
}

#[test]
fn files_are_identical_to_tensorflows() -> Result<()> {
    let dir = TempDir::new()?;
    let path = dir.path().join("v1");
    put(&path, &items()?)?;
    assert_eq!(fs::read(&path).map_err(|e| Error::file(&path, &e))?, PLAIN);
    let mut reader = Reader::open(&path.display().to_string())?;
    for (name, tensor) in items()? {
        assert_eq!(reader.read(name)?, tensor);
    }
    let missing = reader.read(b"x").map_err(|e| (e.code(), e.to_string()));
    let text = format!("Tensor name \"x\" not found in checkpoint files {}", path.display());
    assert_eq!(missing, Err((Code::NotFound, text)));
    assert_eq!(Reader::open("/none/*").map(|_| ()).map_err(|e| e.code()), Err(Code::NotFound));
    Ok(())
}

#[test]
fn supported_types_are_read_back_and_others_are_refused() -> Result<()> {
    let dir = TempDir::new()?;
    for &dtype in DType::ALL.iter().filter(|d| d.size().is_some()) {
        let mut tensor = Tensor::unspecified(dtype, Shape::new(&[5])?)?;
        tensor.bytes_mut()?.iter_mut().enumerate().for_each(|(i, b)| *b = (i % 2) as u8 * 0x81);
        if dtype == DType::Bool {
            tensor = Tensor::bools(&[true, false, true, true, false], Shape::new(&[5])?)?;
        }
        let path = dir.path().join(dtype.name());
        if !writer::is_stored(dtype) {
            assert!(put(&path, &[(b"x", tensor)]).is_err());
            continue;
        }
        put(&path, &[(b"x", tensor.clone())])?;
        assert_eq!(Reader::open(&path.display().to_string())?.read(b"x")?, tensor);
    }
    Ok(())
}

#[test]
fn slices_in_several_files_form_one_tensor() -> Result<()> {
    let dir = TempDir::new()?;
    let halves = [Tensor::try_from([[0f32, 1.0], [2.0, 3.0]])?, Tensor::try_from([[4f32, 5.0], [6.0, 7.0]])?];
    for (i, tensor) in halves.iter().enumerate() {
        let spec = SliceSpec::parse(["4 2 0,2:-", "4 2 2,2:-"][i])?;
        write(dir.path().join(format!("f{i}")), &[Item { name: b"w", spec: Some(spec), tensor }])?;
    }
    let mut reader = Reader::open(&format!("{}/f?", dir.path().display()))?;
    assert_eq!(reader.read(b"w")?.values::<f32>()?, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    let part = reader.read_slice(b"w", &SliceSpec::parse("4 2 1,2:1,1")?)?;
    assert_eq!(part.values::<f32>()?, [3.0, 5.0]);
    Ok(())
}

#[test]
fn damage_at_any_byte_is_an_error() -> Result<()> {
    let dir = TempDir::new()?;
    let path = dir.path().join("v1");
    let read_all = |bytes: &[u8]| {
        fs::write(&path, bytes).map_err(|e| Error::file(&path, &e))?;
        let mut reader = Reader::open(&path.display().to_string())?;
        items()?.iter().try_for_each(|(name, _)| reader.read(name).map(|_| ()))
    };
    read_all(PLAIN)?;
    for at in 0..PLAIN.len() {
        let mut bytes = PLAIN.to_vec();
        bytes[at] ^= 0x81;
        assert_eq!(read_all(&bytes).map_err(|e| e.code()), Err(Code::DataLoss), "byte {at}");
        assert_eq!(read_all(&PLAIN[..at]).map_err(|e| e.code()), Err(Code::DataLoss), "{at} bytes");
    }
    Ok(())
}
