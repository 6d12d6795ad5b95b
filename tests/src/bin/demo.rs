//! tmp
fn main() {
    eprintln!("{:?}", strata_tests::model::fetch());
}
