//! Tests of file names and of the local store, which every build has. Other stores are tested in the root
//! package, which has their dependencies.

use super::*;
use crate::testing::TempDir;

#[test]
fn schemes_select_the_store() {
    let parts = |name: &'static str| (scheme(Path::new(name)), root(Path::new(name)));
    assert_eq!(parts("s3://bucket/a/b"), (Some("s3"), Some("s3://bucket")));
    assert_eq!(parts("s3://bucket"), (Some("s3"), Some("s3://bucket")));
    assert_eq!(parts("http://host:80/a://b"), (Some("http"), Some("http://host:80")));
    for local in ["/a/b", "a", "", "://a", "1s://a", "a b://c", "a/b://c", "s3:/a"] {
        assert_eq!(parts(local), (None, None), "{local}");
        assert!(is_local(Path::new(local)));
    }
    assert_eq!(within(Path::new("gs://a/b"), "c"), Path::new("gs://a/b/c"));
    assert_eq!(within(Path::new("gs://a/b"), "gs://d/e"), Path::new("gs://d/e"));
    assert_eq!(absolute(Path::new("gs://a/b")), Ok("gs://a/b".into()));
}

#[test]
fn the_error_of_a_missing_scheme_names_its_feature() -> Result<()> {
    let error_text = |name: &str| match store_of(name) {
        Err(error) => (error.code() == Code::Unimplemented).then(|| error.to_string()),
        Ok(_) => None,
    };
    let text = "File system scheme 'wasb' not implemented (file: 'wasb://a/b')";
    assert_eq!(error_text("wasb://a/b").as_deref(), Some(text));
    #[cfg(not(feature = "store-s3"))]
    {
        let text = "File system scheme 's3' not implemented (file: 's3://a/b'); it is there in builds with the feature \
                    store-s3";
        assert_eq!(error_text("s3://a/b").as_deref(), Some(text));
        assert_eq!(
            crate::bundle::Writer::create("s3://a/b").err().map(|e| e.to_string()).as_deref(),
            Some(text)
        );
    }
    Ok(())
}

#[test]
fn local_files_are_replaced_atomically() -> Result<()> {
    let dir = TempDir::new()?;
    let name = dir.path().join("file");
    let store = store_of(&name)?;
    assert!(!store.exists(&name)?);
    store.delete(&name)?;
    assert_eq!(store.read(&name).map_err(|e| e.code()), Err(Code::NotFound));
    for content in ["first", "second"] {
        let mut file = store.create(&name)?;
        file.write(content.as_bytes())?;
        file.sync()?;
        assert_ne!(store.read(&name).unwrap_or_default(), content.as_bytes());
        assert_eq!(file.written(), content.len() as u64);
        file.commit()?;
        assert_eq!(store.read(&name)?, content.as_bytes());
    }
    store.create(&name)?.write(b"given up")?;
    assert_eq!(dir.names(), ["file"]);
    let mut part = [0; 3];
    store.open(&name)?.read_at(2, &mut part)?;
    assert_eq!(&part, b"con");
    assert_eq!(store.open(&name)?.read_at(4, &mut part).map_err(|e| e.code()), Err(Code::DataLoss));
    let other = dir.path().join("other");
    relocate(&name, &other)?;
    assert_eq!((dir.names(), store.list(dir.path())?), (vec!["other".to_owned()], vec!["other".into()]));
    store.delete(&other)?;
    assert_eq!(store.list(&dir.path().join("none"))?, <[OsString; 0]>::default());
    Ok(())
}
