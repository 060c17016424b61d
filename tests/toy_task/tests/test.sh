#!/bin/bash
cd /testbed
python3 -c "import slug; raise SystemExit(slug.slug('Hello  World') != 'hello-world' or slug.unslug('a-b') != 'a b')"
echo $((1 - $?)) > /logs/verifier/reward.txt
