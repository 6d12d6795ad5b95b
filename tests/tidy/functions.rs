//! How long a function may be.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::{Finding, Source};

const FUNCTION_LINES_MAX: usize = 70;

/// Functions that are too long, counted from `fn` to the closing brace. Bodies inside of macro
/// calls are not seen.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let file = match syn::parse_file(&source.text) {
        Ok(file) => file,
        Err(error) => {
            return vec![Finding {
                path: source.path.clone(),
                line: error.span().start().line,
                rule: "syntax",
                what: error.to_string(),
                fix: "make it compile",
            }];
        }
    };
    let mut visitor = Functions { path: &source.path, findings: Vec::new() };
    visitor.visit_file(&file);
    visitor.findings
}

struct Functions<'a> {
    path: &'a str,
    findings: Vec<Finding>,
}

impl Functions<'_> {
    fn look(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.fn_token.span.start().line;
        let last = block.span().end().line;
        let lines = last + 1 - first;
        if lines > FUNCTION_LINES_MAX {
            self.findings.push(Finding {
                path: self.path.to_owned(),
                line: first,
                rule: "function length",
                what: format!(
                    "`{}` has {lines} lines; the limit is {FUNCTION_LINES_MAX}",
                    signature.ident
                ),
                fix: "give a part of it a name",
            });
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.look(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.look(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.look(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::Source;

    #[test]
    fn long_functions_are_found_wherever_they_stand() {
        let body = |lines: usize| format!("{{{}}}", "\n".repeat(lines));
        for (text, name) in [
            (format!("fn free() {}", body(70)), "free"),
            (format!("impl A {{ fn method() {} }}", body(70)), "method"),
            (format!("trait A {{ fn given() {} }}", body(70)), "given"),
            (format!("mod a {{ fn inner() {} }}", body(70)), "inner"),
        ] {
            let findings = check(&Source::snippet("a.rs", &text));
            assert!(findings[0].what.contains(name), "{findings:?}");
        }
        assert_eq!(check(&Source::snippet("a.rs", &format!("fn f() {}", body(69)))), []);
    }
}
