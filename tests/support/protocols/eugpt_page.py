"""The examples of EU GPT's page "Streaming events", with abbreviated parts filled in."""

EXAMPLES = [
    '{"type":"response.created","sequence_number":0,"response":{"id":"550e8400-e29b-41d4-a716-446655440000","object":"response",'
    '"created_at":1716387200000,"model":"gpt-oss-120b","status":"in_progress"}}',
    '{"type":"response.routing.completed","sequence_number":1,"model_id":"gpt-oss-120b","category":"reasoning","source":"router",'
    '"reasoning":"Input length > 500 tokens"}',
    '{"type":"response.content_part.added","sequence_number":3,"output_index":0,"content_index":0,"part":{"type":"output_text","text":""}}',
    '{"type":"response.output_text.delta","sequence_number":4,"output_index":0,"content_index":0,"delta":"Hello"}',
    '{"type":"response.output_item.added","sequence_number":5,"output_index":1,"item":{"type":"function_call","name":"web_search",'
    '"call_id":"call_abc123","arguments":"{\\"query\\":\\"\\"}"}}',
    '{"type":"response.output_item.done","sequence_number":12,"output_index":1,"item":{"type":"function_call","name":"web_search",'
    '"call_id":"call_abc123","arguments":"{\\"query\\":\\"\\"}","output":"[{\\"title\\":\\"\\",\\"url\\":\\"\\"}]","status":"completed"}}',
    '{"type":"response.rewrite.in_progress","sequence_number":40}',
    '{"type":"response.output_text.done","sequence_number":41,"output_index":0,"content_index":0,"text":"Hello, world."}',
    '{"type":"response.completed","sequence_number":42,"response":{"id":"550e8400-e29b-41d4-a716-446655440000","status":"completed",'
    '"model":"gpt-oss-120b","output_text":"Hello, world.","tool_calls":[{"name":"web_search","call_id":"call_abc123",'
    '"arguments":"{\\"query\\":\\"\\"}","output":"[{\\"title\\":\\"\\",\\"url\\":\\"\\"}]","status":"completed"}]}}',
]
FAILURE = '{"type":"error","code":"internal_error","message":"Unexpected upstream failure"}'
